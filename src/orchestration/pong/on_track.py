"""Compare the last games of a Pong run with the returns of successful runs.

`on_track.json` contains the band of these runs, our own and published ones, created from their logs by
`docs/results/dreamer_ataripong/scripts/on_track.py`. Runs are compared at equal updates with runs of as many
trained steps per update, because the curves have no other axis in common.
"""

import json
import logging
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...config.dreamer import DreamerTrainConfig
from ...envs.episodes import Episode
from ...utils.schedule import Every
from ...utils.state_files import check_structure
from ...utils.timestep import TimeStep
from ...utils.units import count_text
from ...workflows.world_models.config import Objective
from ..instruments import Envs, Instrument, Run

_LOG = logging.getLogger(__name__)
GAMES = 16
"""Games per mean, equal to the preset's number of emulators. The first games to end are mostly lost ones."""

UPDATES_OF_THE_BAND = 500
UPDATES_BETWEEN = 2_000
"""Updates between comparisons for a run without evaluations."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A return, with the reference band at the same number of updates."""

    updates: float
    episode_return: float
    low: float
    high: float
    has_risen: bool
    """Whether the return exceeds the lowest return by more than the minimum margin."""

    runs: int
    published: int

    @property
    def is_behind(self) -> bool:
        """Whether the return is below all reference runs by more than the margin."""
        return self.episode_return < self.low

    def __str__(self) -> str:
        """Return "on track: return -3.1, reference -9.4 to 2.0 at 18,000 updates (11 runs, 10 published)"."""
        word = "behind" if self.is_behind else "on track" if self.has_risen else "too early to say"
        band = f"reference {self.low:.1f} to {self.high:.1f} at {count_text(round(self.updates), 'update')}"
        runs = f"{count_text(self.runs, 'run')}, {self.published} published"
        return f"{word}: return {self.episode_return:.1f}, {band} ({runs})"


@dataclass(frozen=True, slots=True)
class Reference:
    """The band of successful runs with the same number of trained steps per update.

    Element i of each list is for `UPDATES_OF_THE_BAND` * i updates.
    """

    low: list[float]
    """Lower edge of the band: the running maximum of the worst return minus the margin."""

    high: list[float]
    """Return of the best run."""

    runs: list[int]
    """Number of runs with at least this many updates."""

    published: list[int]
    """Number of published runs among them."""

    risen_above: float
    """Runs with a return above this one have learned something."""

    train_ratio: float
    """Highest train ratio of these runs."""

    def standing(self, updates: float, episode_return: float) -> Standing:
        """Compare with the runs at this number of updates, or with the end of the longest run."""
        at = min(int(updates // UPDATES_OF_THE_BAND), len(self.low) - 1)
        has_risen = episode_return > self.risen_above
        band = self.low[at], self.high[at]
        return Standing(updates, episode_return, *band, has_risen, self.runs[at], self.published[at])


def reference_of(game: str, trained_steps: int) -> Reference | None:
    """Return the reference for a game and its trained steps per update, or `None` without one."""
    references = json.loads(Path(__file__).with_suffix(".json").read_text())
    found = references.get(game, {}).get(str(trained_steps))
    return Reference(**found) if found else None


class LastGames:
    """The mean return of a run's last `GAMES` finished games, and the mean number of updates at their middle.

    With 16 emulators a game lasts for thousands of updates, so the middle represents its policy best.
    `updates_per_round` is the number of updates per step of all environments.
    """

    def __init__(self, updates_per_round: float) -> None:
        self._updates_per_round = updates_per_round
        self.games: deque[list[float]] = deque(maxlen=GAMES)
        """Updates and return of each game."""

    def add(self, episode: Episode, updates: int) -> None:
        """Add a game that ended after this many updates."""
        middle = updates - episode.length * self._updates_per_round / 2
        self.games.append([max(0.0, middle), episode.episode_return])

    def mean(self) -> tuple[float, float] | None:
        """Return the mean updates and return, or `None` for fewer than `GAMES` games."""
        if len(self.games) < GAMES:
            return None
        updates, episode_return = np.mean(self.games, axis=0).tolist()
        return updates, episode_return


class OnTrack(Instrument):
    """Compare the last games with the reference at every evaluation, or else every 2,000 updates."""

    def __init__(self, run: Run) -> None:
        env, training = run.config.env, run.config.training
        super().__init__(run, training.evaluation_interval, self._report)
        self._reference = reference_of(env.game, training.batch_size * training.sequence_length)
        self._last = LastGames(env.num_envs * training.updates_per_step)
        self._are_updates_made = Every(0 if training.evaluation_interval else UPDATES_BETWEEN)
        self._has_warned = False

    def is_due(self, run: Run) -> bool:
        """Return whether an evaluation or enough updates have been made since the last comparison."""
        return super().is_due(run) or self._are_updates_made(run.updates)

    def add(self, run: Run, time_step: TimeStep, envs: Envs, ended: list[Episode]) -> None:
        """Add the finished games."""
        for game in ended:
            self._last.add(game, run.updates)

    def state_dict(self) -> dict[str, Any]:
        """Return the updates and return of the last games, (n, 2) float64."""
        return {"last_games": np.array(self._last.games, np.float64).reshape(-1, 2)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the last games."""
        self._are_updates_made = Every(self._are_updates_made.interval, state["updates"])
        # Version 0.2 did not save the games.
        if (games := state.get("last_games")) is not None:
            check_structure(games, np.empty((min(len(games), GAMES), 2)), "last_games")
            self._last.games.extend(games.tolist())

    def _report(self, run: Run) -> None:
        """Log the comparison of the last games, with a warning the first time that they are behind."""
        if self._reference is None or (mean := self._last.mean()) is None:
            return
        standing = self._reference.standing(*mean)
        _LOG.info("step %s: %s", f"{run.step:,}", standing)
        values = {"return": standing.episode_return, "low": standing.low, "high": standing.high}
        values["updates"] = standing.updates
        run.reports.writer.scalars(run.step, {f"on_track/{name}": value for name, value in values.items()})
        run.reports.writer.band(run.step, "on_track")
        if standing.is_behind and not self._has_warned:
            self._has_warned = True
            _LOG.warning("%s", usual_causes(run.config, self._reference, run.run_dir))


def usual_causes(config: DreamerTrainConfig, reference: Reference, run_dir: Path) -> str:
    """Return the settings that may explain why a run is behind all reference runs."""
    skip, ratio = config.env.action_repeat, config.training.train_ratio
    model = config.world_model
    is_taught = model.objective is Objective.reconstruction
    rate, own = config.optimizer.of("actor").learning_rate, config.optimizer.actor_learning_rate is not None
    name = f"optimizer.{'actor_' if own else ''}learning_rate"
    causes = {
        f"env.action_repeat={skip}: the reference repeats each action 4 times": skip != 4,
        f"training.train_ratio={ratio:g}: fewer new games per update than in the reference, at most "
        f"{reference.train_ratio:g}": ratio > reference.train_ratio,
        f"world_model.decoder_scale={model.decoder_scale:g}: encoding a ball of two pixels may cost more "
        "than it saves (preset: 200)": is_taught and not model.harmony and model.decoder_scale < 200,
        "world_model.losses.decoder=false: no loss makes the model encode the ball": is_taught
        and not model.losses["decoder"],
        "world_model.objective=none: no loss makes the model encode the ball": model.objective
        is Objective.none,
        f"{name}={rate:g}: the policy may lose its entropy before the model encodes the ball (preset: 3e-4 "
        "for the actor)": rate > 3e-4,
    }
    found = [text for text, applies in causes.items() if applies]
    shown = "; ".join(found) if found else "not visible in the settings"
    probe = f"reverie-probe run={os.path.relpath(run_dir)}"
    return (
        f"behind the worst run of the reference. Usual causes: {shown}. To check whether the model encodes "
        f"the ball, run {probe}"
    )
