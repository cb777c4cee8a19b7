"""The same seed produces the same numbers in any process, and another seed produces different ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reverie.testing.fingerprint import reproducible

from ..runs.helpers import (
    CARTPOLE,
    CATCH,
    PONG,
    differing,
    intervals_of,
    metrics_of,
    saved_model,
    start,
)

SCRIPT = Path(__file__).parents[2] / "scripts" / "train.py"


def assert_same(a: Path, b: Path, step: int) -> None:
    assert reproducible(metrics_of(a)) == reproducible(metrics_of(b))
    assert differing(saved_model(a, step), saved_model(b, step)) == set()


@pytest.mark.parametrize(
    ("run", "arguments"), [("cartpole_run", CARTPOLE), ("catch_run", CATCH)], ids=["1 env", "4 envs"]
)
def test_the_same_seed_gives_the_same_300_steps_and_66_updates(
    run: str, arguments: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before = request.getfixturevalue(run)
    assert intervals_of(before)[-1]["train/updates"] == 66
    assert_same(before, start(tmp_path / "run", *arguments), 300)


def test_a_process_with_other_hashes_and_global_seeds_gives_the_same_pong(
    pong_run: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), *PONG, f"run_dir={run_dir}"],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": "12345"},
    )
    assert_same(pong_run, run_dir, 60)


def test_another_seed_gives_other_parameters_episodes_and_losses(cartpole_run: Path, tmp_path: Path) -> None:
    shorter = ("training.total_timesteps=150", "seed=1")
    other = start(tmp_path / "run", *CARTPOLE, *shorter)
    lines, other_lines = reproducible(metrics_of(cartpole_run)), reproducible(metrics_of(other))
    for tag in ("episode/length", "train/loss/total"):
        values, other_values = ([line[tag] for line in many if tag in line] for many in (lines, other_lines))
        assert other_values and values[: len(other_values)] != other_values
    assert "/world_model/encoder.mlp.0.weight" in differing(
        saved_model(cartpole_run, 150), saved_model(other, 150)
    )
