"""Compare a run's last episodes with the returns of other runs on the same task.

`pong.json` contains the band of successful Pong runs, both ours and published ones. The script
`docs/results/dreamer_ataripong/scripts/on_track.py` creates it from logs. Runs are compared at equal numbers
of updates and trained steps per update, because the curves have no other axis in common.

`published.json.gz` contains the bands of the author's learning curves for Atari-100k and DMC, created by
`benchmarks/published_curves.py`. Runs are compared at equal numbers of frames.
"""

import gzip
import json
import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...config.dreamer import DreamerTrainConfig
from ...envs.config import EnvConfig, Observations, Suite
from ...envs.episodes import Episode
from ...utils.schedule import Every
from ...utils.state_files import check_structure
from ...utils.timestep import TimeStep
from ...utils.units import count_text
from ...workflows.world_models.config import Objective
from ..instruments import Envs, Instrument, Run

_LOG = logging.getLogger(__name__)
_FOLDER = Path(__file__).parent
EPISODES = 16
"""Episodes per mean, one for each emulator of the Pong preset. The first games to end are mostly lost."""

UPDATES_OF_THE_BAND = 500
UPDATES_BETWEEN = 2_000
"""Updates between comparisons for a run without evaluations."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A return and the reference band at the same point on the axis."""

    place: float
    """Number of updates or frames."""

    episode_return: float
    low: float
    high: float
    has_risen: bool
    """Whether the return exceeds the returns of runs that have not learned anything yet."""

    unit: str
    """Singular noun for the unit of `place`."""

    source: str
    """Description of the reference runs."""

    @property
    def is_behind(self) -> bool:
        """Whether the return is below the band."""
        return self.episode_return < self.low

    def __str__(self) -> str:
        """Return "on track: return -3.1, reference -9.4 to 2.0 at 18,000 updates (11 runs, 10 published)"."""
        above = "ahead" if self.episode_return > self.high else "on track"
        word = "behind" if self.is_behind else above if self.has_risen else "too early to say"
        band = f"reference {self.low:.1f} to {self.high:.1f} at {count_text(round(self.place), self.unit)}"
        return f"{word}: return {self.episode_return:.1f}, {band} ({self.source})"


@dataclass(frozen=True, slots=True)
class Reference:
    """The band of other runs on the same task.

    Element i of each list is for `spacing` * i updates, or frames for published curves.
    """

    low: list[float]
    """Lower edge: the worst seed, or for Pong the running maximum of the worst return minus the margin."""

    high: list[float]
    """Return of the best run."""

    runs: list[int]
    """Number of runs with at least this many updates."""

    published: list[int]
    """Number of published runs with at least this many updates."""

    risen_above: float
    """A run with a return above this value has learned something."""

    train_ratio: float = math.inf
    """Highest train ratio of the runs, infinite for published curves."""

    spacing: int = UPDATES_OF_THE_BAND
    agent: str | None = None
    """Name of the agent that produced the published curves."""

    mean: list[float] = field(default_factory=list)
    """Mean over the seeds of the published curves."""

    @property
    def end(self) -> float:
        """Number of frames that the published curves cover. Pong's band has no end."""
        return math.inf if self.agent is None else self.spacing * (len(self.low) - 1)

    def standing(self, place: float, episode_return: float) -> Standing:
        """Compare a return with the band at this number of updates or frames, or at the end of the band."""
        point = min(place / self.spacing, len(self.low) - 1)
        at = int(point)
        curves = (self.low, self.high, self.mean or self.low)
        low, high, mean = (float(np.interp(point, range(len(curve)), curve)) for curve in curves)
        unit, source = "update", f"{count_text(self.runs[at], 'run')}, {self.published[at]} published"
        if self.agent is not None:
            unit, seeds = "frame", count_text(self.runs[at], "seed")
            source = f"{self.agent}, {seeds}, mean {mean:.1f}"
        has_risen = episode_return > self.risen_above
        return Standing(place, episode_return, low, high, has_risen, unit, source)


def reference_of(config: DreamerTrainConfig) -> Reference | None:
    """Return the reference for a run, or `None` if its task does not have one.

    Pong has its own references for some numbers of trained steps per update. Other runs use published curves.
    """
    steps = config.training.batch_size * config.training.sequence_length
    if (config.env.suite, config.env.game) == (Suite.atari, "pong"):
        own = json.loads((_FOLDER / "pong.json").read_text())["pong"].get(str(steps))
        if own is not None:
            return Reference(**own)
    if (task := published_task(config.env)) is None:
        return None
    suites = json.loads(gzip.decompress((_FOLDER / "published.json.gz").read_bytes()))["suites"]
    found = suites[task[0]]
    if (curves := found["tasks"].get(task[1])) is None:
        return None
    seeds = [curves.pop("seeds")] * len(curves["low"])
    agent, spacing, start = found["agent"], found["frames_between_points"], curves["high"][0]
    return Reference(**curves, runs=seeds, published=seeds, risen_above=start, spacing=spacing, agent=agent)


def published_task(env: EnvConfig) -> tuple[str, str] | None:
    """Return the suite and task of an environment's published curves, or `None`."""
    if env.suite is Suite.atari and not (env.sticky_actions or env.full_action_space):
        return "atari100k", env.game
    if env.suite is Suite.dmc and env.observations is not Observations.both:
        return "dmc_proprio" if env.observations is Observations.proprio else "dmc_vision", env.task
    return None


class LastEpisodes:
    """The mean return of a run's last `EPISODES` finished episodes, and the mean place of their midpoints.

    A place is a number of updates or frames. With 16 emulators a game lasts thousands of updates, so its
    midpoint represents its policy best. `per_round` is the number of updates or frames per step of all
    environments.
    """

    def __init__(self, per_round: float) -> None:
        self._per_round = per_round
        self.games: deque[list[float]] = deque(maxlen=EPISODES)
        """The place and return of each episode."""

    def add(self, episode: Episode, place: float) -> None:
        """Add an episode that ended at this place."""
        self.games.append([max(0.0, place - episode.length * self._per_round / 2), episode.episode_return])

    def mean(self) -> tuple[float, float] | None:
        """Return the mean place and return, or `None` for fewer than `EPISODES` episodes."""
        if len(self.games) < EPISODES:
            return None
        place, episode_return = np.mean(self.games, axis=0).tolist()
        return place, episode_return


class OnTrack(Instrument):
    """Compares the last episodes with the reference at every evaluation, if any, or every 2,000 updates."""

    def __init__(self, run: Run) -> None:
        env, training = run.config.env, run.config.training
        super().__init__(run, training.evaluation_interval, self._report)
        self._reference = reference_of(run.config)
        self._is_by_frames = self._reference is not None and self._reference.agent is not None
        self._last = LastEpisodes(
            env.num_envs * (env.action_repeat if self._is_by_frames else training.updates_per_step)
        )
        self._are_updates_made = Every(0 if training.evaluation_interval else UPDATES_BETWEEN)
        self._has_warned = False

    def is_due(self, run: Run) -> bool:
        """Return whether there has been an evaluation, or enough updates, since the last comparison."""
        return super().is_due(run) or self._are_updates_made(run.updates)

    def add(self, run: Run, time_step: TimeStep, envs: Envs, ended: list[Episode]) -> None:
        """Add the finished episodes."""
        for episode in ended:
            place = run.step * run.config.env.action_repeat if self._is_by_frames else run.updates
            self._last.add(episode, place)

    def state_dict(self) -> dict[str, Any]:
        """Return the places and returns of the last episodes, (n, 2) float64, and the unit of places."""
        games = np.array(self._last.games, np.float64).reshape(-1, 2)
        return {"last_games": games, "is_by_frames": self._is_by_frames}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the last episodes."""
        self._are_updates_made = Every(self._are_updates_made.interval, state["updates"])
        # Version 0.2 did not save the games.
        games = state.get("last_games")
        # Another batch size may change the reference, and with it the unit of places.
        if games is not None and state.get("is_by_frames", False) == self._is_by_frames:
            check_structure(games, np.empty((min(len(games), EPISODES), 2)), "last_games")
            self._last.games.extend(games.tolist())

    def _report(self, run: Run) -> None:
        """Log how the last episodes compare. For Pong, warn the first time they are behind."""
        reference, mean = self._reference, self._last.mean()
        if reference is None or mean is None or mean[0] > reference.end:
            return
        standing = reference.standing(*mean)
        _LOG.info("step %s: %s", f"{run.step:,}", standing)
        values = {"return": standing.episode_return, "low": standing.low, "high": standing.high}
        values[f"{standing.unit}s"] = standing.place
        run.reports.writer.scalars(run.step, {f"on_track/{name}": value for name, value in values.items()})
        run.reports.writer.band(run.step, "on_track")
        # A seed as good as five published ones is below all five with probability 1/6.
        if standing.is_behind and not self._has_warned and not self._is_by_frames:
            self._has_warned = True
            _LOG.warning("%s", usual_causes(run.config, reference))


def usual_causes(config: DreamerTrainConfig, reference: Reference) -> str:
    """Return the settings that may explain why a run of Pong is behind all reference runs."""
    skip, ratio = config.env.action_repeat, config.training.train_ratio
    model = config.world_model
    is_taught = model.objective == Objective.reconstruction
    rate, own = config.optimizer.of("actor").learning_rate, config.optimizer.actor_learning_rate is not None
    name = f"optimizer.{'actor_' if own else ''}learning_rate"
    causes = {
        f"env.action_repeat={skip}: the reference repeats each action 4 times": skip != 4,
        f"training.train_ratio={ratio:g}: fewer new games per update than in the reference, at most "
        f"{reference.train_ratio:g}": ratio > reference.train_ratio,
        f"world_model.decoder_scale={model.decoder_scale:g}: encoding a two-pixel ball may cost more "
        "than it saves (preset: 200)": is_taught and not model.harmony and model.decoder_scale < 200,
        "world_model.losses.decoder=false: no loss makes the model encode the ball": is_taught
        and not model.losses["decoder"],
        "world_model.objective=none: no loss makes the model encode the ball": model.objective
        == Objective.none,
        f"{name}={rate:g}: the policy may lose its entropy before the model encodes the ball (preset: 3e-4 "
        "for the actor)": rate > 3e-4,
    }
    found = [text for text, applies in causes.items() if applies]
    shown = "; ".join(found) if found else "none visible in the settings"
    probe = f"python -m benchmarks.pong_probe run={config.run_dir}"
    return (
        f"behind the worst reference run. Usual causes: {shown}. To check whether the model encodes "
        f"the ball, run {probe} in a clone"
    )
