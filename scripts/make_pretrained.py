"""Make networks that come with the package from a run: weights, configuration, and a card with their score.

python scripts/make_pretrained.py run=<run> to=src/pretrained/<name> commit=<of the run> trained_on=<machine>
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf
from safetensors.torch import save

from reverie.checkpoints.pretrained import CARD_FILE, WEIGHTS_FILE, resolve_pretrained
from reverie.checkpoints.run_folder import CONFIG_FILE
from reverie.checkpoints.weights import networks_of
from reverie.commands.evaluate import EvaluateConfig, evaluate_run
from reverie.commands.options import own_settings
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.saved import read_config
from reverie.config.schema import Device
from reverie.orchestration.trained import load_agent
from reverie.utils.errors import UserError, exit_on_user_error

_USAGE = """\
Make networks that come with the package: scripts/make_pretrained.py run=<run> to=<new folder> [key=value ...]

"""


@dataclass(kw_only=True, slots=True)
class Settings:
    """What is made, typed as key=value."""

    run: str | None = None
    """Folder of the run, whose newest checkpoint counts, or `pretrained:<name>`."""

    to: str | None = None
    """New folder for the files."""

    episodes: int = 20
    """Episodes of the score on the card."""

    commit: str | None = None
    """Commit that the run was trained with."""

    trained_on: str | None = None
    """Machine and time, in words."""

    def __post_init__(self) -> None:
        if missing := [name for name in ("run", "to", "commit", "trained_on") if not getattr(self, name)]:
            raise UserError(f"{missing[0]} is missing; --help says what it is.")
        if Path(str(self.to)).exists():
            raise UserError(f"to={self.to} exists already. Name a new folder.")


@exit_on_user_error()
def main() -> None:
    """Write `weights.safetensors`, `config.yaml` and `card.json`."""
    settings, _ = own_settings(Settings, sys.argv[1:], "make_pretrained", _USAGE)
    assert settings.run is not None and settings.to is not None
    asked = EvaluateConfig(run=settings.run, episodes=settings.episodes, device=Device.cpu)
    run, agent, _ = load_agent(settings.run, Device.cpu)
    if not isinstance(run, DreamerTrainConfig):
        raise UserError(
            f"run={settings.run} is a population; only networks of Dreamer come with the package."
        )
    parts = networks_of(agent).items()
    weights = save(
        {f"{part}/{name}": one.contiguous() for part, state in parts for name, one in state.items()}
    )
    config = read_config(Path(resolve_pretrained(settings.run)) / CONFIG_FILE)
    config.run_dir = config.resume = config.model.init = None  # folders of the machine it ran on
    config.buffer.prefill = config.checkpoint.mirror = None
    result, _ = evaluate_run(asked)
    folder = Path(settings.to)
    folder.mkdir(parents=True)
    (folder / WEIGHTS_FILE).write_bytes(weights)
    (folder / CONFIG_FILE).write_text(OmegaConf.to_yaml(config))
    card = {
        **{key: result[key] for key in ("environment", "step", "mean", "standard_error")},
        "episodes": settings.episodes,
        "policy": result["policy"],
        "seed": config.seed,
        "evaluation_seed": result["seed"],
        "commit": settings.commit,
        "trained_on": settings.trained_on,
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    (folder / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n")


if __name__ == "__main__":
    main()
