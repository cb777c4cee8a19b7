"""A short version of scripts/chaos.py with real processes and real kills."""

from pathlib import Path

import pytest

from benchmarks.chaos import chaos

from ..runs.helpers import CATCH


def test_a_run_that_is_killed_again_and_again_ends_as_the_unbroken_one(tmp_path: Path) -> None:
    often = ("training.checkpoint_interval=60", "training.keep_checkpoints=2", "training.total_timesteps=450")
    odd = ("training.log_interval=70", "training.evaluation_interval=200", "training.evaluation_episodes=2")
    result = chaos([*CATCH, *often, *odd], kills=2, seed=5, folder=tmp_path)
    assert result.broken == result.unbroken and result.passed
    assert result.kills, "the run came to its end before it was killed once"
    left = {path.name for path in (tmp_path / "broken" / "checkpoints").iterdir()}
    assert len(left) in (3, 4), "the newest two, and the best one"
    assert "replay" in left and not any("unfinished" in name for name in left)


@pytest.mark.timeout(1800)
def test_a_run_whose_torchrun_is_killed_leaves_no_process_and_ends_as_the_unbroken_one(
    tmp_path: Path,
) -> None:
    """One kill occurs while ranks start, one during a checkpoint, and one with a line of the log."""
    shared = ("training.batch_size=4", "training.train_ratio=6", "training.video_interval=0")
    often = ("training.checkpoint_interval=60", "training.log_interval=40", "training.total_timesteps=300")
    result = chaos([*CATCH, *shared, *often], 3, 4405, tmp_path, ranks=2, torchrun=True)
    assert result.broken == result.unbroken and result.passed
    assert len(result.kills) == 3
    assert "torchrun" in {kill.target for kill in result.kills}
