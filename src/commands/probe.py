"""`reverie-probe`: what a world model of Pong knows about ball, paddles and points."""

import json
import sys
from dataclasses import dataclass
from typing import Any

from .. import orchestration
from ..config.schema import Device
from ..envs.config import check_is_pong
from ..utils.errors import UserError, exit_on_user_error, require_range, require_seed
from ..workflows import world_models
from .entry import load
from .evaluate import cut_episodes
from .options import own_settings

_USAGE = """\
Measure what a world model of Pong knows about ball, paddles and points: reverie-probe run=<folder>

  reverie-probe run=experiments/<run>      one line of JSON, for the newest checkpoint
  reverie-probe run=pretrained:pong        networks that come with the package

The policy plays `episodes` games. Each is judged by linear probes of the model's features that were fitted to
all others. Each number is given for what the model believes after it saw the frame, and `imagined_steps`
after the last frame it saw. Eight games of a good policy take some minutes of one core. A policy that repeats
its rallies is probed on those: the numbers are of its own play.

  r2      share of the variance of ball and paddles that a linear probe explains, where a ball is in play
  drawn   share of the frames, the ball between the paddles, that the decoder draws with half of its contrast
  auc     how often the reward head ranks a won point above no point, and no point above a lost one

"""


@dataclass(kw_only=True, slots=True)
class ProbeConfig:
    """Settings of `reverie-probe`, typed as key=value."""

    run: str | None = None
    """Folder of the run, a folder of weights and configuration, or `pretrained:<name>`."""

    episodes: int = 8
    """Games to play; each is held out once."""

    imagined_steps: int = 5
    """Steps that are imagined without seeing a frame."""

    max_steps: int = 3000
    """Steps after which a game is cut."""

    seed: int = 0
    """Seed of games and policy."""

    device: Device = Device.auto
    """Where the networks live."""

    def __post_init__(self) -> None:
        if not self.run:
            raise UserError("run is missing: name the folder of a run, as in run=experiments/<run>.")
        require_range("", self, "episodes", ge=2)
        require_range("", self, "imagined_steps", ge=1)
        if self.max_steps <= self.imagined_steps:
            raise UserError(
                f"max_steps must be > imagined_steps={self.imagined_steps}, got {self.max_steps}."
            )
        require_seed(self.seed)


def probe_run(config: ProbeConfig) -> dict[str, Any]:
    """Return what `reverie-probe` prints."""
    assert config.run is not None
    run, workflow, step = orchestration.load_agent(config.run, config.device)
    if not isinstance(workflow, world_models.DreamerWorkflow):
        raise UserError(f"run={config.run} is a population; the probe measures world models.")
    check_is_pong(run.env, f"run={config.run}")
    env = cut_episodes(run.env, workflow.env, config.max_steps)
    played = orchestration.play(workflow, env, config.episodes, config.seed)
    beliefs = {}
    for steps in (0, config.imagined_steps):
        try:
            found = orchestration.probe_episodes(workflow, played, steps, config.seed)
        except ValueError as error:
            raise UserError(f"{error}; play more of them, with episodes= or max_steps=.") from error
        beliefs[f"after_{steps}_imagined_steps"] = found
    return {
        "run": config.run,
        "step": step,
        "seed": config.seed,
        "returns": [float(episode.episode_return) for episode in played],
        "lengths": [len(episode.rewards) for episode in played],
    } | beliefs


@exit_on_user_error()
def main() -> None:
    """Run `reverie-probe` with the arguments of this process."""
    config, _ = own_settings(ProbeConfig, sys.argv[1:], "probe", _USAGE)
    load("..orchestration", "recipe_of")  # imports torch
    print(json.dumps(probe_run(config)))
