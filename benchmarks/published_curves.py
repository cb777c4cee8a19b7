"""Build the bands of the author's learning curves: python -m benchmarks.published_curves <clone>.

The argument is a clone of https://github.com/danijar/dreamerv3. The score files of one commit, verified by
their hashes, become `src/orchestration/on_track/published.json.gz`: the lowest, mean and highest return over
the seeds of each task, on a grid of environment steps (frames). `benchmarks/dmc_baselines.csv` gets the first
points of each seed for docs/dmc.md. Repeated builds produce the same bytes.

Atari-100k and DMC vision: the files contain the return of each training episode. A seed's return is the mean
over its last 16 episodes, at the mean of their midpoints. The returns of a run are averaged in the same way
before they are compared.

DMC proprio: the files contain means per 10,000 frames, most of them of a single episode, because the values
are integers in tasks with integer rewards. The means are used unchanged. The return is interpolated linearly
between two means, and is constant before the first and after the last one.

There are no files for Crafter.
"""

import gzip
import hashlib
import json
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reverie.envs.episodes import Episode
from reverie.orchestration.on_track import instrument
from reverie.orchestration.on_track.instrument import LastEpisodes
from reverie.utils.errors import FlagParser, UserError, exit_on_user_error

COMMIT = "e3f02248693a79dc8b0ebd62c93683888ddaccfe"
REPOSITORY = "https://github.com/danijar/dreamerv3"
AGENT = "DreamerV3 (Nature)"
FILE = Path(instrument.__file__).with_name("published.json.gz")
DIGITS = 4
SEEDS = Path(__file__).with_name("dmc_baselines.csv")
SEEDS_SUITE, SEEDS_FRAMES = "dmc_proprio", 100_000
SEEDS_TASKS = "cartpole_balance", "ball_in_cup_catch", "reacher_easy", "walker_walk"


@dataclass(frozen=True, slots=True)
class ScoreFile:
    """A score file of the author."""

    path: str
    sha256: str
    prefix: str
    """Prefix of a task's name."""

    grid: NDArray[np.int64]
    """Frames at which the bands have points, from 0 in equal steps."""

    num_envs: int | None
    """Number of environments, each with one episode after another, or `None` if the file contains means."""


SUITES = {
    "atari100k": ScoreFile(
        "scores/atari100k-dreamerv3.json.gz",
        "c839ef2fd28a5c4b7c6f36151a8d16cb41d4d2fb72338c265850b2b4dd5b5e15",
        "atari_",
        np.arange(0, 400_001, 10_000),
        1,
    ),
    "dmc_proprio": ScoreFile(
        "scores/dmc_proprio-dreamerv3.json.gz",
        "8182860a8a56dc56836c319fde9b941376621e1e0d474141c7d174ab833cc7f4",
        "dmc_",
        np.arange(0, 490_001, 10_000),
        None,
    ),
    "dmc_vision": ScoreFile(
        "scores/dmc_vision-dreamerv3.json.gz",
        "68dd7e83ee6af076734e1edb843a3816cd241736c92e91837e7cf460231b7b08",
        "dmc_",
        np.arange(0, 1_000_001, 20_000),
        8,
    ),
}


def seed_means(frames: Sequence[float], returns: Sequence[float], num_envs: int) -> NDArray[np.float64]:
    """Return the frames (at the midpoint) and mean return of the last episodes after each episode, (n, 2).

    Args:
        frames: Frames of all environments at the end of each episode.
        returns: Return of each episode.
        num_envs: Number of environments, whose episodes end in turn.
    """
    last, means = LastEpisodes(per_round=1), []
    begins = [0.0] * num_envs + list(frames)
    for begin, end, episode_return in zip(begins, frames, returns, strict=False):
        last.add(Episode(0, episode_return, int(end - begin)), end)
        means.append(last.mean())
    return np.array([mean for mean in means if mean is not None])


def bands_of(runs: Sequence[dict[str, Any]], file: ScoreFile) -> dict[str, dict[str, Any]]:
    """Return the bands of each task of a score file."""
    seeds: defaultdict[str, list[NDArray[np.float64]]] = defaultdict(list)
    for run in runs:
        points = np.array([run["xs"], run["ys"]], float).T
        if file.num_envs is not None:
            points = seed_means(run["xs"], run["ys"], file.num_envs)
        seeds[run["task"].removeprefix(file.prefix)].append(np.interp(file.grid, *points.T))
    return {
        task: {
            "seeds": len(rows),
            "low": rounded(np.min(rows, axis=0)),
            "mean": rounded(np.mean(rows, axis=0)),
            "high": rounded(np.max(rows, axis=0)),
        }
        for task, rows in sorted(seeds.items())
    }


def rounded(values: Iterable[float]) -> list[float]:
    """Return the values with four significant digits."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def read_scores(clone: Path, file: ScoreFile) -> list[dict[str, Any]]:
    """Return the runs of a score file.

    Raises:
        UserError: If the clone lacks the file or contains a different one.
    """
    command = ["git", "-C", str(clone), "show", f"{COMMIT}:{file.path}"]
    shown = subprocess.run(command, capture_output=True)
    if shown.returncode != 0:
        error = shown.stderr.decode().strip()
        raise UserError(f"{clone} has no {file.path} at {COMMIT}: {error}. Clone {REPOSITORY}.")
    if (found := hashlib.sha256(shown.stdout).hexdigest()) != file.sha256:
        raise UserError(f"{file.path} has the SHA-256 {found}, expected {file.sha256}.")
    return json.loads(gzip.decompress(shown.stdout))


def build(clone: Path) -> bytes:
    """Return the contents of the compressed file with all suites."""
    suites = {
        name: {
            "agent": AGENT,
            "frames_between_points": int(file.grid[1]),
            "source": file.path,
            "sha256": file.sha256,
            "tasks": bands_of(read_scores(clone, file), file),
        }
        for name, file in SUITES.items()
    }
    content = {"repository": REPOSITORY, "commit": COMMIT, "suites": suites}
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)


def seeds_of(runs: Sequence[dict[str, Any]], file: ScoreFile) -> str:
    """Return a CSV file with the points of each seed of the tasks in docs/dmc.md."""
    lines = [
        f"# Made by `python -m benchmarks.published_curves`: {file.path} of {REPOSITORY} at {COMMIT[:7]}."
    ]
    lines.append("task,seed,frames,return")
    for run in runs:
        task = run["task"].removeprefix(file.prefix)
        points = zip(run["xs"], rounded(run["ys"]), strict=True)
        if task in SEEDS_TASKS:
            lines += [f"{task},{run['seed']},{x:.0f},{y:g}" for x, y in points if x <= SEEDS_FRAMES]
    return "\n".join(lines) + "\n"


def published_bands() -> dict[str, dict[str, Any]]:
    """Return the suites of the built file by name."""
    return json.loads(gzip.decompress(FILE.read_bytes()))["suites"]


@exit_on_user_error()
def main() -> None:
    """Build both files and print their sizes."""
    parser = FlagParser(description=__doc__)
    parser.add_argument("clone", type=Path, help=f"clone of {REPOSITORY}")
    clone, suite = parser.parse_args().clone, SUITES[SEEDS_SUITE]
    FILE.write_bytes(build(clone))
    SEEDS.write_text(seeds_of(read_scores(clone, suite), suite))
    for file in (FILE, SEEDS):
        print(f"{file}: {file.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
