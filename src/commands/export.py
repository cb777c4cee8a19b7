"""Export a run's networks without its replay and optimizers: reverie-export run=<folder> out=<new folder>.

reverie-export run=experiments/<run> out=mine              weights, configuration, and a card with a score
reverie-export run=experiments/<run> out=mine video=true   the same, and a video of the first episode
reverie-evaluate run=mine                                  evaluate it (in Python: reverie.load("mine"))
hf upload <owner>/<name> mine                              publish it, for run=hub:<owner>/<name>
reverie-export format=onnx --help                          export to ONNX, for machines without Reverie
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save

from .. import __version__
from ..checkpoints.pretrained import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, resolve_pretrained
from ..checkpoints.weights import networks_of
from ..config.saved import read_config, saved_text
from ..config.schema import Device
from ..orchestration.reports import write_video
from ..orchestration.trained import load_agent
from ..utils.durable_io import replacing
from ..utils.errors import UserError, exit_on_user_error
from ..utils.units import count_text
from .entry import INTERRUPTED
from .evaluate import INTERRUPTED_EXIT_CODE, EvaluateConfig, evaluate_run, require_writable
from .options import own_settings

PAGE_FILE, VIDEO_FILE = "README.md", "replay.mp4"


@dataclass(kw_only=True, slots=True)
class ExportConfig:
    """Settings of `reverie-export`, written as key=value."""

    run: str
    """Run folder (its newest checkpoint is exported) or folder with weights."""

    out: str
    """New folder for the files."""

    episodes: int = 20
    """Number of episodes for the score on the card."""

    max_steps: int | None = None
    """Maximum number of steps per episode, or null for the environment's own limit."""

    seed: int = 0
    """Seed of the episodes and the policy."""

    video: bool = False
    """Write a video of the first episode to replay.mp4, from its image observations or rendered frames."""

    trust: bool = False
    """Allow a copied or downloaded run to import the modules of its own classes."""

    def __post_init__(self) -> None:
        if os.path.lexists(self.out):
            raise UserError(f"out={self.out} already exists. Choose a new folder.")
        require_writable("out", Path(self.out))


@exit_on_user_error()
def main() -> None:
    """Run `reverie-export` with the arguments of this process."""
    asked, _ = own_settings(ExportConfig, sys.argv[1:], "reverie-export", __doc__)
    card = export_run(asked)
    print(f"{asked.out}: mean {_score(card)} in {count_text(asked.episodes, 'episode')}")


def export_run(asked: ExportConfig, more: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Write all files atomically and return the card. `more` contains additional entries of the card.

    Raises:
        UserError: If the run is a population or cannot be evaluated, or the folder cannot be written.
        SystemExit: With code 130 after Ctrl-C, without writing files.
    """
    run, out = asked.run, Path(asked.out)
    playing = EvaluateConfig(
        **{name: getattr(asked, name) for name in ("run", "episodes", "max_steps", "seed")},
        video=str(out / VIDEO_FILE) if asked.video else None,
        device=Device.cpu,
    )
    # The run may save another checkpoint during the evaluation, so load only once.
    loaded = load_agent(run, Device.cpu, trust=asked.trust)
    parts = networks_of(loaded[1]).items()
    weights = save(
        {f"{part}/{name}": one.contiguous() for part, state in parts for name, one in state.items()}
    )
    # Remove the user's folders and addresses from the configuration.
    config: Any = read_config(Path(resolve_pretrained(run)) / CONFIG_FILE)
    config.run_dir = config.resume = config.model.init = None
    config.buffer.prefill = config.checkpoint.mirror = config.collect.address = None
    result, frames = evaluate_run(playing, loaded)
    if "open_returns" in result:
        print(f"{INTERRUPTED}; no files were written", file=sys.stderr)
        raise SystemExit(INTERRUPTED_EXIT_CODE)
    card = {
        **{key: result[key] for key in ("environment", "step", "mean", "standard_error")},
        "episodes": asked.episodes,
        "policy": result["policy"],
        "seed": config.seed,
        "evaluation_seed": result["seed"],
        **(more or {}),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    files = {
        WEIGHTS_FILE: weights,
        CONFIG_FILE: saved_text(config),
        CARD_FILE: f"{json.dumps(card, indent=2)}\n".encode(),
        PAGE_FILE: _page(card, config.name, asked.max_steps).encode(),
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as begun:
            begun.mkdir()
            for name, content in files.items():
                (begun / name).write_bytes(content)
            if frames is not None:
                write_video(begun / VIDEO_FILE, frames)
    except OSError as error:
        raise UserError(f"out={out} cannot be written: {error.strerror}.") from error
    return card


def _score(card: Mapping[str, Any]) -> str:
    error = card["standard_error"]
    return f"{card['mean']:.2f}" + ("" if error is None else f" +/- {error:.2f}")


def _page(card: Mapping[str, Any], name: str, max_steps: int | None) -> str:
    """Return the model card for the Hugging Face Hub, with its front matter."""
    environment, score, step = card["environment"], _score(card), card["step"]
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    metric = {"type": "mean_reward", "name": "mean_reward", "value": score, "verified": False}
    result = {"task": task, "dataset": {"name": environment, "type": environment}, "metrics": [metric]}
    front = {
        "library_name": "reverie",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reverie", "dreamerv3", "world-models", "reinforcement-learning", environment],
        "model-index": [{"name": name, "results": [result]}],
    }
    text = (Path(__file__).parent / "model_card.md").read_text()
    text = text.format(
        **card,
        name=name,
        score=score,
        played=count_text(card["episodes"], "episode"),
        cut="" if max_steps is None else f", episodes cut after {count_text(max_steps, 'step')}",
        steps="an unknown number of agent steps" if step is None else count_text(step, "agent step"),
        reverie=__version__,
    )
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n{text}"
