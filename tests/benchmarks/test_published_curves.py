"""The bands of the author's curves, from fabricated score files, and the file of the package."""

import gzip
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import published_curves
from benchmarks.published_curves import COMMIT, FILE, SUITES, ScoreFile, bands_of, build, published_bands
from reverie.utils.errors import UserError

GRID = np.arange(0, 40_001, 10_000)
RUNS = [
    {"task": "dmc_walker_walk", "seed": 0, "xs": [10_000.0, 30_000.0], "ys": [0.0, 123.456]},
    {"task": "dmc_walker_walk", "seed": 1, "xs": [10_000.0, 30_000.0], "ys": [10.0, 20.0]},
    {"task": "dmc_cup_catch", "seed": 0, "xs": [20_000.0], "ys": [7.0]},
]


def score_file(num_envs: int | None = None, sha256: str = "") -> ScoreFile:
    return ScoreFile("scores/made.json.gz", sha256, "dmc_", GRID, num_envs)


def test_means_become_the_lowest_mean_and_highest_return_on_the_grid() -> None:
    assert bands_of(RUNS, score_file()) == {
        "cup_catch": {"seeds": 1, "low": [7.0] * 5, "mean": [7.0] * 5, "high": [7.0] * 5},
        "walker_walk": {
            "seeds": 2,
            "low": [0.0, 0.0, 15.0, 20.0, 20.0],
            "mean": [5.0, 5.0, 38.36, 71.73, 71.73],
            "high": [10.0, 10.0, 61.73, 123.5, 123.5],
        },
    }


@pytest.mark.parametrize("num_envs", [1, 2])
def test_episodes_become_means_of_sixteen_at_their_middles(num_envs: int) -> None:
    # Each episode has 1,000 frames, and the environments end in turn. The first 16 have returns 0 to 15.
    frames = [1_000 * num_envs * (at // num_envs + 1) for at in range(40)]
    run = {"task": "dmc_walker_walk", "seed": 0, "xs": frames, "ys": list(range(40))}
    means = published_curves.seed_means(frames, run["ys"], num_envs)
    assert means.shape == (25, 2)
    assert means[:, 1].tolist() == [7.5 + at for at in range(25)]
    middles = np.array(frames) - 500 * num_envs
    assert means[:, 0].tolist() == [middles[at : at + 16].mean() for at in range(25)]
    band = bands_of([run], score_file(num_envs))["walker_walk"]
    # Beyond the last mean, the curve is constant.
    assert band["low"][0] == 7.5 and band["high"][-1] == 31.5


def test_the_file_is_built_from_one_commit_and_checked_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = gzip.compress(json.dumps(RUNS).encode())
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "made.json.gz").write_bytes(content)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Add scores"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(published_curves, "COMMIT", "HEAD")
    right, wrong = hashlib.sha256(content).hexdigest(), "0" * 64
    monkeypatch.setattr(published_curves, "SUITES", {"dmc": score_file(sha256=right)})
    built = build(tmp_path)
    assert built == build(tmp_path)
    found: dict[str, Any] = json.loads(gzip.decompress(built))
    suite = found["suites"]["dmc"]
    assert (suite["source"], suite["sha256"], suite["frames_between_points"]) == (
        "scores/made.json.gz",
        right,
        10_000,
    )
    assert suite["tasks"] == bands_of(RUNS, score_file())
    monkeypatch.setattr(published_curves, "SUITES", {"dmc": score_file(sha256=wrong)})
    with pytest.raises(UserError, match=f"has the SHA-256 {right}, expected {wrong}"):
        build(tmp_path)
    monkeypatch.setattr(published_curves, "COMMIT", "HEAD~1")
    with pytest.raises(UserError, match=r"has no scores/made\.json\.gz at HEAD~1: .* Clone https"):
        build(tmp_path)


def test_the_file_of_the_package_has_all_tasks_of_the_score_files_and_is_small() -> None:
    assert FILE.stat().st_size < 150_000
    assert json.loads(gzip.decompress(FILE.read_bytes()))["commit"] == COMMIT
    suites = published_bands()
    assert {name: len(suite["tasks"]) for name, suite in suites.items()} == {
        "atari100k": 26,
        "dmc_proprio": 18,
        "dmc_vision": 20,
    }
    for name, file in SUITES.items():
        assert (suites[name]["source"], suites[name]["sha256"]) == (file.path, file.sha256)
        for band in suites[name]["tasks"].values():
            assert {len(band[edge]) for edge in ("low", "mean", "high")} == {len(file.grid)}
    # These means were computed from the score file independently.
    catch = suites["dmc_proprio"]["tasks"]["ball_in_cup_catch"]
    assert (round(catch["mean"][2]), round(catch["mean"][3])) == (224, 313)
