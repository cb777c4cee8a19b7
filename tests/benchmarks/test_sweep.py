"""A sweep runs each job in its own process and folder, skips finished jobs, and resumes the others."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sweep import last_metrics, main

from ..runs.helpers import CATCH, error_of, identity, metrics_of, resume, start

SWEEP = (
    *CATCH,
    "seed=1,2",
    "training.total_timesteps=100",
    "training.checkpoint_interval=50",
    "training.video_interval=0",
    "logger.tensorboard=false",
)


def told(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "sweep.json").read_text())["jobs"]


def test_two_jobs_equal_two_runs_and_finished_jobs_are_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sweep"
    arguments = [*SWEEP, f"sweep.out={out}", "sweep.last=5"]
    main(arguments)
    shown = capsys.readouterr()
    jobs = told(out)
    assert [job["values"] for job in jobs] == [{"seed": 1}, {"seed": 2}]
    assert [job["result"]["exit_code"] for job in jobs] == [0, 0]
    for job in jobs:
        lines = metrics_of(out / job["folder"])
        returns = [line["episode/return"] for line in lines if "episode/return" in line]
        assert job["result"]["metrics"]["episode/return_last_5"] == sum(returns[-5:]) / 5
        assert job["result"]["metrics"]["step"] == 100
    assert "job_1" in shown.out and "episode/return_last_5" in shown.out
    alone = start(tmp_path / "alone", *(each for each in SWEEP if not each.startswith("seed=")), "seed=2")
    assert identity(out / "job_1") == identity(alone)

    # Only the second job starts again, from its final checkpoint, so it has no steps to make.
    logs = [(out / f"job_{index}" / "output.log").read_text() for index in range(2)]
    results = json.loads((out / "sweep.json").read_text())
    results["jobs"][1]["result"]["exit_code"] = 75
    (out / "sweep.json").write_text(json.dumps(results))
    # A job that was resumed by hand, from another folder, is still a job of this sweep.
    monkeypatch.chdir(tmp_path)
    resume(Path("sweep/job_1"))
    main(arguments)
    assert [job["result"]["exit_code"] for job in told(out)] == [0, 0]
    assert (out / "job_0" / "output.log").read_text() == logs[0]
    assert len((out / "job_1" / "output.log").read_text()) > len(logs[1])
    assert identity(out / "job_1") == identity(alone)


def test_another_sweep_in_the_same_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path / "job_0", *CATCH, "training.total_timesteps=60")
    capsys.readouterr()
    message = error_of(capsys, lambda: main([*SWEEP, f"sweep.out={tmp_path}"]))
    assert message == f"{tmp_path / 'job_0'} contains a job of another sweep. Choose another sweep.out."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a sweep needs a folder for its jobs. Add sweep.out=sweeps/<name>."),
        (("sweep.out=out", "sweep.cpus=0"), "sweep.cpus must be at least 1, got 0."),
        (("sweep.out=out", "env.num_envs=0,1"), "env.num_envs must be at least 1, got 0."),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_created(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert error_of(capsys, lambda: main([*CATCH, *arguments])) == message
    assert list(empty_folder.iterdir()) == []


def test_a_job_without_lines_has_no_numbers(tmp_path: Path) -> None:
    assert last_metrics(tmp_path, 3) == {}
