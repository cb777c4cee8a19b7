"""Build the reference of the `on track` metric from our logs and a published table: `python on_track.py`.

It writes `src/orchestration/on_track/pong.json`, and prints the standing of each run when it is left out of
the reference, and the standing of failed runs.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from reverie.envs.episodes import Episode
from reverie.orchestration.on_track import instrument
from reverie.orchestration.on_track.instrument import UPDATES_OF_THE_BAND, LastEpisodes, Reference
from reverie.utils.logging.json_lines import read_lines

RUNS = Path(__file__).parents[1]
# Each run, with the runs that continued its networks with a new replay and new optimizers, and the number of
# updates after which they did.
OURS = {
    "seed_1_h100": {},
    "long/preset_seed1": {},
    "long/a_seed1": {},
    "long/b_seed1": {"long/b_seed1_continued": 28_730},
    "long/b_seed2": {},
    "long/b_seed3": {},
    "h100_seed_1": {},
    "h100_seed_2": {},
    "h100_seed_3": {},
    "seed_1_cpu": {},
    "seed_2_cpu": {},
    "seed_3_cpu": {},
}
LOWEST_RETURN = -21.0
UPDATES_OF_A_MARGIN = 10_000
LEAST_MARGIN = 3.0
NO_MARGIN = np.zeros((1, 2))
KEYS = ("low", "high", "runs", "published", "risen_above", "train_ratio")
# Logs of runs outside the reference, and the folder with each run's settings.
OTHERS = {
    "long/c_seed3/metrics.jsonl": "long/c_seed3",
    **{f"long/h100_seed_{n}/metrics.jsonl": f"long/h100_seed_{n}" for n in (1, 2, 3)},
    "seed_4_cpu/metrics.jsonl": "seed_4_cpu",
    "negative_frame_skip_1/metrics.jsonl": "negative_frame_skip_1",
    "negative_frame_skip_16/metrics.jsonl": "negative_frame_skip_16",
    "negative_rates_1e-3_seed_7.jsonl": "seed_1",
    "negative_changing_decoder_scale.jsonl": "seed_1",
    "seed_1/metrics.jsonl": "seed_1",
    "controller_rate_1e-4_seed_7.jsonl": "seed_1",
}
PUBLISHED_RATIO = 1024.0
PUBLISHED_STEPS = 1024
# Mean return of 100 evaluations. These runs made one update, with 16 windows of 64 steps, per agent step.
PUBLISHED = {
    "DreamerV3": (
        (-17, -15, -12, -2, 7, 11),
        (-18, -6, 16, 18, 19, 20),
        (-21, -19, -13, -6, 1, 14),
        (-16, -15, 0, 13, 15, 15),
        (-20, -16, -3, 13, 18, 20),
    ),
    "Harmony": (
        (-18, -11, 3, 9, 13, 19),
        (-15, -8, 7, 19, 19, 20),
        (-18, 3, 16, 18, 19, 20),
        (-15, -4, -4, 2, 13, 17),
        (-19, -18, -13, -4, 14, 18),
    ),
}
PUBLISHED_UPDATES = (10_000, 20_000, 30_000, 50_000, 75_000, 100_000)
PUBLISHED_SOURCE = "thuml/HarmonyDream, scores/{}.json, seed {}"


@dataclass(frozen=True, slots=True)
class Pace:
    """A run's rate of updates, from its `config.yaml`."""

    trained_steps: int
    train_ratio: float
    updates_per_round: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The return of a run over its updates."""

    source: str
    """The folder in `docs/results/dreamer_ataripong`, or the publication."""

    is_published: bool
    points: np.ndarray
    """(n, 2) updates, starting at 0 and nondecreasing, and mean return."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Successful runs with the same number of trained steps per update."""

    curves: tuple[Curve, ...]
    margins: np.ndarray
    """(n, 2) updates, starting at 0, and the points below the worst curve that still count as on track."""

    train_ratio: float
    """The highest train ratio of these runs."""

    @property
    def longest(self) -> float:
        """The largest number of updates of a curve."""
        return max(curve.points[-1, 0] for curve in self.curves)

    def worst(self, updates: np.ndarray) -> np.ndarray:
        """Return the lowest return at each number of updates among the runs that reached it, or infinity."""
        return np.min(self._returns(updates, np.inf), axis=0)

    def reference(self) -> Reference:
        """Return the band. Its lower edge never falls, because the return of a learning run does not fall."""
        at = np.arange(0.0, self.longest + 1.0, UPDATES_OF_THE_BAND)
        margins = self.margins[np.searchsorted(self.margins[:, 0], at, "right") - 1, 1]
        low = np.maximum.accumulate(np.maximum(LOWEST_RETURN, self.worst(at) - margins))
        reached = np.array([at <= curve.points[-1, 0] for curve in self.curves])
        published = reached[[curve.is_published for curve in self.curves]]
        return Reference(
            low=low.round(4).tolist(),
            high=np.max(self._returns(at, -np.inf), axis=0).round(4).tolist(),
            runs=reached.sum(axis=0).tolist(),
            published=published.sum(axis=0).tolist(),
            risen_above=LOWEST_RETURN + float(self.margins[0, 1]),
            train_ratio=self.train_ratio,
        )

    def _returns(self, updates: np.ndarray, beyond: float) -> list[np.ndarray]:
        return [
            np.where(updates <= curve.points[-1, 0], np.interp(updates, *curve.points.T), beyond)
            for curve in self.curves
        ]


def pace_of(run: str) -> Pace:
    settings = yaml.safe_load((RUNS / run / "config.yaml").read_text())
    training = settings["training"]
    steps, ratio = training["batch_size"] * training["sequence_length"], training["train_ratio"]
    return Pace(steps, ratio, settings["env"]["num_envs"] * ratio / steps)


def means_of(metrics: Path, pace: Pace) -> list[tuple[float, float]]:
    """Return updates and mean return of the last games after each game, as computed by the run."""
    lines = list(read_lines(metrics))
    logged = np.array([(line["step"], line["train/updates"]) for line in lines if "train/updates" in line])
    games, means = LastEpisodes(pace.updates_per_round), []
    for line in lines:
        if "episode/return" in line:
            updates = int(np.interp(line["step"], *logged.T))
            games.add(Episode(0, line["episode/return"], int(line["episode/length"])), updates)
            means.append(games.mean())
    return [mean for mean in means if mean is not None]


def our_curve(run: str) -> Curve:
    means = means_of(RUNS / run / "metrics.jsonl", pace_of(run))
    for later, before in OURS[run].items():
        means += [(before + x, y) for x, y in means_of(RUNS / later / "metrics.jsonl", pace_of(later))]
    points = [(0.0, LOWEST_RETURN), *sorted((round(x), round(y, 2)) for x, y in means)]
    return Curve(run, False, np.array(points, float))


def published_curves() -> list[Curve]:
    return [
        Curve(
            PUBLISHED_SOURCE.format(name.lower(), seed),
            True,
            np.array([(0, LOWEST_RETURN), *zip(PUBLISHED_UPDATES, returns, strict=True)], float),
        )
        for name, seeds in PUBLISHED.items()
        for seed, returns in enumerate(seeds, 1)
    ]


def without(found: Curves, curve: Curve) -> Curves:
    return replace(found, curves=tuple(each for each in found.curves if each is not curve))


def points_below(found: Curves, points: list[tuple[float, float]]) -> list[float]:
    """Return the distance of each mean below the worst run in points, negative above it."""
    bare = replace(found, margins=NO_MARGIN).reference()
    return [bare.standing(*point).low - point[1] for point in points]


def references() -> dict[int, Curves]:
    """Return the curves by trained steps per update, with margins so large that no left-out run is behind."""
    found = {}
    for steps in sorted({pace_of(run).trained_steps for run in OURS}):
        runs = [run for run in OURS if pace_of(run).trained_steps == steps]
        curves, ratios = [our_curve(run) for run in runs], [pace_of(run).train_ratio for run in runs]
        if steps == PUBLISHED_STEPS:
            curves += published_curves()
            ratios.append(PUBLISHED_RATIO)
        bare = Curves(tuple(curves), NO_MARGIN, max(ratios))
        found[steps] = replace(bare, margins=margins_of(bare))
    return found


def margins_of(found: Curves) -> np.ndarray:
    """Return the smallest nondecreasing integer margins per 10,000 updates with no left-out run behind."""
    most = np.full(math.ceil(found.longest / UPDATES_OF_A_MARGIN) + 1, LEAST_MARGIN)
    for curve in found.curves:
        updates, returns = curve.points.T
        at = np.union1d(updates, np.arange(0.0, updates[-1], UPDATES_OF_THE_BAND))
        lowest_later = np.minimum.accumulate(np.interp(at, updates, returns)[::-1])[::-1]
        below = without(found, curve).worst(at) - lowest_later
        np.maximum.at(most, (at // UPDATES_OF_A_MARGIN).astype(int), np.where(np.isinf(below), 0.0, below))
    margins = np.maximum.accumulate(np.ceil(most))
    begins = np.flatnonzero(np.diff(margins, prepend=-1.0))
    return np.stack([begins * float(UPDATES_OF_A_MARGIN), margins[begins]], axis=1)


def as_json(found: dict[int, Curves]) -> str:
    """Return JSON text with one list per line."""
    blocks = []
    for steps, curves in sorted(found.items()):
        reference = asdict(curves.reference())
        lines = (f'"{name}": {json.dumps(reference[name])}' for name in KEYS)
        blocks.append(f'"{steps}": {{\n' + ",\n".join(lines) + "\n}")
    return '{"pong": {\n' + ",\n".join(blocks) + "\n}}\n"


def row(name: str, found: Curves, points: list[tuple[float, float]]) -> str:
    reference = found.reference()
    standings = [reference.standing(*point) for point in points]
    below = points_below(found, points)
    behind = [each for each in standings if each.is_behind]
    when = f"from {behind[0].place:,.0f} on, {len(behind)} of {len(standings)}" if behind else "never"
    updates, last = points[-1]
    return f"| {name} | {updates:,.0f} | {last:.1f} | {max(below):.1f} | {when} |"


def main() -> None:
    found = references()
    Path(instrument.__file__).with_name("pong.json").write_text(as_json(found))
    headings = ("Run", "Updates at the last comparison", "Mean return there")
    print("|", " | ".join((*headings, "Largest distance below the worst other run", "Behind")), "|")
    print("|---|---|---|---|---|")
    for steps, curves in found.items():
        print(f"margins of {steps}: {curves.margins.tolist()}")
        for curve in curves.curves:
            print(row(f"{curve.source} ({steps})", without(curves, curve), curve.points.tolist()))
    for metrics, run in OTHERS.items():
        pace = pace_of(run)
        print(row(metrics, found[pace.trained_steps], means_of(RUNS / metrics, pace)))


if __name__ == "__main__":
    main()
