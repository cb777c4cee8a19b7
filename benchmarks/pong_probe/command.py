"""Measure how well a Pong world model encodes the ball, paddles and points.

  python -m benchmarks.pong_probe run=experiments/<run>   one line of JSON, for the newest checkpoint
  python -m benchmarks.pong_probe run=pretrained:pong     an agent included in the package

The policy plays `episodes` games. Linear probes of the model's features are fitted to all games but one and
tested on that one, for each game in turn. Each number is reported for states with the current frame, and for
states imagined `imagined_steps` steps beyond the last frame. Eight games of a good policy take a few minutes
on one core. The numbers describe the policy's own games, which may repeat the same rallies.

  r2      fraction of the variance of ball and paddles that a linear probe explains, with a ball in play
  drawn   fraction of frames with a ball between the paddles whose decoded ball has half its contrast or more
  auc     probability that the reward head ranks a won point above no point, and no point above a lost one
"""

import json
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.pong_probe.memory import check_is_pong
from benchmarks.pong_probe.probe import play, probe_episodes
from reverie.commands.evaluate import cut_episodes
from reverie.commands.options import own_settings
from reverie.config.schema import Device
from reverie.orchestration import load_agent
from reverie.utils.errors import UserError, exit_on_user_error, require_range, require_seed
from reverie.workflows.world_models import DreamerWorkflow


@dataclass(kw_only=True, slots=True)
class ProbeConfig:
    """Settings of `python -m benchmarks.pong_probe`, written as key=value."""

    run: str
    """Run folder, folder with weights and configuration, or `pretrained:<name>`."""

    episodes: int = 8
    """Number of games to play. Each is held out once."""

    imagined_steps: int = 5
    """Number of steps imagined without a frame."""

    max_steps: int = 3000
    """Maximum number of steps per game."""

    seed: int = 0
    """Seed of the games and the policy."""

    device: Device = Device.auto
    """Device of the networks."""

    trust: bool = False
    """Allow a copied or downloaded run to import the modules of its own classes."""

    def __post_init__(self) -> None:
        require_range("", self, "episodes", ge=2)
        require_range("", self, "imagined_steps", ge=1)
        if self.max_steps <= self.imagined_steps:
            raise UserError(
                f"max_steps must be > imagined_steps={self.imagined_steps}, got {self.max_steps}."
            )
        require_seed(self.seed)


def probe_run(config: ProbeConfig) -> dict[str, Any]:
    """Return the result of `python -m benchmarks.pong_probe`."""
    run, workflow, step = load_agent(config.run, config.device, trust=config.trust)
    if not isinstance(workflow, DreamerWorkflow):
        raise UserError(f"run={config.run} is a population, but the probe measures world models.")
    check_is_pong(run.env, f"run={config.run}")
    env = cut_episodes(run.env, workflow.env, config.max_steps)
    played = play(workflow, env, config.episodes, config.seed)
    beliefs = {}
    for steps in (0, config.imagined_steps):
        try:
            found = probe_episodes(workflow, played, steps, config.seed)
        except ValueError as error:
            raise UserError(f"{error}. Increase episodes= or max_steps=.") from error
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
    """Run `python -m benchmarks.pong_probe` with the arguments of this process."""
    config, _ = own_settings(ProbeConfig, sys.argv[1:], "probe", __doc__)
    print(json.dumps(probe_run(config)))
