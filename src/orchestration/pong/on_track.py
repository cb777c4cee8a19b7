"""Whether a run of Pong learns as fast as runs that learned did: its last games next to a band of returns.

`on_track.json` has the band of those runs, ours and published ones, written from their logs by
`docs/results/dreamer_ataripong/scripts/on_track.py`. Runs are compared at equal updates, and only with those
of as many trained steps in an update: no other axis is common to the curves.
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
"""Games of one mean, as many as the preset has emulators. Fewer would be the lost ones: they end first."""

UPDATES_OF_THE_BAND = 500
UPDATES_BETWEEN = 2_000
"""Updates between two comparisons of a run without evaluations."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A return next to what other runs had after as many updates."""

    updates: float
    episode_return: float
    low: float
    high: float
    has_risen: bool
    """Whether the return is above the lowest one by more than the least margin: it has learned something."""

    runs: int
    published: int

    @property
    def is_behind(self) -> bool:
        """Whether the return is below that of every other run, by more than the margin."""
        return self.episode_return < self.low

    def __str__(self) -> str:
        """Return "on track: return -3.1, reference -9.4 to 2.0 at 18,000 updates (11 runs, 10 published)"."""
        word = "behind" if self.is_behind else "on track" if self.has_risen else "too early to say"
        band = f"reference {self.low:.1f} to {self.high:.1f} at {count_text(round(self.updates), 'update')}"
        runs = f"{count_text(self.runs, 'run')}, {self.published} published"
        return f"{word}: return {self.episode_return:.1f}, {band} ({runs})"


@dataclass(frozen=True, slots=True)
class Reference:
    """The band of runs that learned, all with as many trained steps in an update.

    Number i of each list is for `UPDATES_OF_THE_BAND` * i updates.
    """

    low: list[float]
    """The lowest return that is not behind. It never falls."""

    high: list[float]
    """The return of the best run."""

    runs: list[int]
    """Runs that came this far."""

    published: list[int]
    """Published runs among them."""

    risen_above: float
    """A run whose return is above this one has learned something."""

    train_ratio: float
    """The highest ratio of these runs."""

    def standing(self, updates: float, episode_return: float) -> Standing:
        """Compare with the runs that came this far; after the longest one, with its end."""
        at = min(int(updates // UPDATES_OF_THE_BAND), len(self.low) - 1)
        has_risen = episode_return > self.risen_above
        band = self.low[at], self.high[at]
        return Standing(updates, episode_return, *band, has_risen, self.runs[at], self.published[at])


def reference_of(game: str, trained_steps: int) -> Reference | None:
    """Return the reference for a game and a number of trained steps in an update, or `None` without one."""
    references = json.loads(Path(__file__).with_suffix(".json").read_text())
    found = references.get(game, {}).get(str(trained_steps))
    return Reference(**found) if found else None


class LastGames:
    """The mean of a run's last `GAMES` finished games, and the updates made when these were half played.

    By the middle of each game: one of 16 emulators lasts for thousands of updates, and its player is as old.
    `updates_per_round` are made for each step of all environments.
    """

    def __init__(self, updates_per_round: float) -> None:
        self._updates_per_round = updates_per_round
        self.games: deque[list[float]] = deque(maxlen=GAMES)
        """Updates and return of each game."""

    def add(self, episode: Episode, updates: int) -> None:
        """Count a game that ended after so many updates."""
        middle = updates - episode.length * self._updates_per_round / 2
        self.games.append([max(0.0, middle), episode.episode_return])

    def mean(self) -> tuple[float, float] | None:
        """Return updates and return; None before there are `GAMES` games."""
        if len(self.games) < GAMES:
            return None
        updates, episode_return = np.mean(self.games, axis=0).tolist()
        return updates, episode_return


class OnTrack(Instrument):
    """Compares the last games with the reference at every evaluation, or each 2,000 updates without any."""

    def __init__(self, run: Run) -> None:
        env, training = run.config.env, run.config.training
        super().__init__(run, training.evaluation_interval, self._report)
        self._reference = reference_of(env.game, training.batch_size * training.sequence_length)
        self._last = LastGames(env.num_envs * training.updates_per_step)
        self._are_updates_made = Every(0 if training.evaluation_interval else UPDATES_BETWEEN)
        self._has_warned = False

    def is_due(self, run: Run) -> bool:
        """Return whether an evaluation is due, or enough updates were made."""
        return super().is_due(run) or self._are_updates_made(run.updates)

    def add(self, run: Run, time_step: TimeStep, envs: Envs, ended: list[Episode]) -> None:
        """Count the games that ended."""
        for game in ended:
            self._last.add(game, run.updates)

    def state_dict(self) -> dict[str, Any]:
        """Return updates and return of the last games, float64 (n, 2)."""
        return {"last_games": np.array(self._last.games, np.float64).reshape(-1, 2)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the last games."""
        self._are_updates_made = Every(self._are_updates_made.interval, state["updates"])
        if (games := state.get("last_games")) is not None:  # version 0.2 wrote none
            check_structure(games, np.empty((min(len(games), GAMES), 2)), "last_games")
            self._last.games.extend(games.tolist())

    def _report(self, run: Run) -> None:
        """Log how the last games stand; warn once in a process if they are behind."""
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
    """Return why a run may be behind every run of the reference, as far as its settings show it."""
    skip, ratio = config.env.action_repeat, config.training.train_ratio
    model = config.world_model
    is_taught = model.objective is Objective.reconstruction
    rate, own = config.optimizer.of("actor").learning_rate, config.optimizer.actor_learning_rate is not None
    name = f"optimizer.{'actor_' if own else ''}learning_rate"
    causes = {
        f"env.action_repeat={skip}: the reference repeats each action 4 times": skip != 4,
        f"training.train_ratio={ratio:g}: an update brings fewer new games than in the reference, at most "
        f"{reference.train_ratio:g}": ratio > reference.train_ratio,
        f"world_model.decoder_scale={model.decoder_scale:g}: a ball of two pixels may cost more than it "
        "saves; the preset has 200": is_taught and not model.harmony and model.decoder_scale < 200,
        "world_model.losses.decoder=false: nothing asks the model to see the ball": is_taught
        and not model.losses["decoder"],
        "world_model.objective=none: nothing asks the model to see the ball": model.objective
        is Objective.none,
        f"{name}={rate:g}: the policy may lose its entropy before the model sees a ball; the preset has 3e-4 "
        "for the actor": rate > 3e-4,
    }
    found = [text for text, holds in causes.items() if holds]
    shown = "; ".join(found) if found else "none that the settings show"
    probe = f"reverie-probe run={os.path.relpath(run_dir)}"
    return (
        f"behind the worst run of the reference. Usual causes: {shown}. Does the model see the ball? {probe}"
    )
