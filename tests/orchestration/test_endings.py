"""Exits after failures: exit code, message, and the files that remain."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch

from reverie.checkpoints.checkpoint import latest_checkpoint, list_checkpoints
from reverie.commands.train import ENVIRONMENT_EXIT_CODE, GPU_MEMORY_EXIT_CODE
from reverie.envs.episodes import Episode
from reverie.orchestration.dreamer.nonfinite import NONFINITE_EXIT_CODE
from reverie.orchestration.evaluation import Evaluation
from reverie.workflows.world_models import DreamerWorkflow

from ..runs.helpers import (
    CARTPOLE,
    CATCH,
    error_of,
    files_in,
    intervals_of,
    resume,
    saved_steps,
    start,
)
from ..runs.warm import Server


def test_losses_that_stay_non_finite_lead_back_once_and_then_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    total = DreamerWorkflow.total
    calls = iter(range(10**6))
    monkeypatch.setattr(
        DreamerWorkflow,
        "total",
        lambda self, losses: total(self, losses) * (1 if next(calls) < 30 else torch.nan),
    )
    run_dir = tmp_path / "run"
    with pytest.raises(SystemExit) as stopped:
        start(run_dir, *CATCH, "training.checkpoint_interval=60", "training.max_consecutive_nonfinite=4")
    assert stopped.value.code == NONFINITE_EXIT_CODE
    log = (run_dir / "train.log").read_text()
    assert log.count("rolling back to the newest checkpoint") == 1
    assert (
        "4 updates in a row had a non-finite loss or gradient (training.max_consecutive_nonfinite=4)" in log
    )
    assert "skipped update: non-finite loss/total" in log
    kept = json.loads(next((run_dir / "nonfinite").glob("*.json")).read_text())
    assert "loss/total" in kept["not_finite"]
    state = latest_checkpoint(run_dir).model(torch.device("cpu"))
    assert all(value.isfinite().all() for value in state["world_model"].values())
    updates = intervals_of(run_dir)[-1]["train/updates"]
    # The fault is removed, so the run can be continued.
    monkeypatch.setattr(DreamerWorkflow, "total", total)
    resume(run_dir)
    assert intervals_of(run_dir)[-1]["train/updates"] > updates


def test_no_checkpoint_is_written_among_updates_that_are_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = DreamerWorkflow.total
    calls = iter(range(10**6))

    def fails(self: DreamerWorkflow, losses: Any) -> torch.Tensor:
        # The plan's dry run does not count. Updates 19 to 21 are made at steps 116, 120 and 124.
        is_bad = self.device.type != "meta" and next(calls) in range(19, 22)
        return total(self, losses) * (torch.nan if is_bad else 1)

    monkeypatch.setattr(DreamerWorkflow, "total", fails)
    settings = ("training.checkpoint_interval=60", "training.max_consecutive_nonfinite=4")
    # The best evaluation, at step 120, has no checkpoint, so it must not outdo the last one.
    evaluations = (Evaluation([Episode(0, mean, 7)], [], None) for mean in (0, 2, 1))
    monkeypatch.setattr("reverie.orchestration.instruments.evaluate", lambda *_, **__: next(evaluations))
    evaluated = ("training.evaluation_interval=60", "training.evaluation_episodes=1")
    run_dir = start(tmp_path / "run", *CATCH, *settings, *evaluated, "training.total_timesteps=180")
    best = [each.step for each in list_checkpoints(run_dir) if each.manifest()["best"]]
    assert best == [60, 180]
    skipped = re.findall(r"step (\d+): skipped update", (run_dir / "train.log").read_text())
    assert skipped == ["116", "120", "124"]
    assert saved_steps(run_dir) == [60, 128, 180]


@pytest.mark.parametrize("overlap", ["false", "true"])
def test_a_full_gpu_leaves_a_checkpoint_and_advice(
    overlap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These are the warm-up steps.
    update = DreamerWorkflow.update_world_model
    calls = iter(range(10**6))

    def runs_out(self: DreamerWorkflow, batch: object) -> object:
        # The plan's dry run does not count.
        if self.device.type != "meta" and next(calls) == 10:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
        return update(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(DreamerWorkflow, "update_world_model", runs_out)
    run_dir = tmp_path / "run"
    with pytest.raises(SystemExit) as stopped:
        start(run_dir, *CATCH, "training.total_timesteps=120", f"training.overlap={overlap}")
    assert stopped.value.code == GPU_MEMORY_EXIT_CODE
    log = (run_dir / "train.log").read_text()
    assert "Tried to allocate 2.00 GiB" in log and "plan.fit_gib" in log and "resume=" in log
    # 10 updates from step 40 on, one per 4 steps.
    assert saved_steps(run_dir) == [80]
    resume(run_dir)
    assert intervals_of(run_dir)[-1]["train/updates"] > 10


def test_a_disk_that_takes_no_checkpoint_does_not_stop_training_before_its_end(
    tmp_path: Path, server: Server
) -> None:
    run_dir = tmp_path / "run"
    arguments = (
        *CARTPOLE,
        "model.deter=256",
        "model.classes=8",
        f"run_dir={run_dir}",
        "logger.tensorboard=false",
    )
    ended = server.run("train", *arguments, file_bytes=400_000)
    assert ended.code == 2
    assert "step 150: checkpoint failed: [Errno 27] File too large" in ended.error
    assert ended.last_line.startswith(
        f"error: {run_dir} cannot be written: File too large. Raise the file size limit"
    )
    assert "Traceback" not in ended.error
    assert [line["step"] for line in intervals_of(run_dir)] == [50, 100, 150, 200, 250, 300]
    assert saved_steps(run_dir) == []
    assert not [name for name in files_in(run_dir / "checkpoints") if "unfinished" in name]


def test_a_run_that_is_in_use_saves_at_sigusr1_and_refuses_a_second_process(
    tmp_path: Path, server: Server
) -> None:
    run_dir = tmp_path / "run"
    endless = ("training.total_timesteps=1000000", "training.checkpoint_interval=0")
    process = server.start("train", *CATCH, *endless, f"run_dir={run_dir}")

    def goes_on() -> None:
        logged = len(intervals_of(run_dir))
        process.wait_until(lambda: len(intervals_of(run_dir)) > logged)

    process.wait_for("train/loss/total", run_dir / "metrics.jsonl")
    process.send(signal.SIGUSR1)
    process.wait_until(lambda: len(saved_steps(run_dir)) == 1)
    goes_on()
    config = (run_dir / "config.yaml").read_text()
    refused = server.run("train", f"resume={run_dir}", "training.batch_size=3")
    assert refused.code == 2
    assert "is in use by another process" in refused.error and "Traceback" not in refused.error
    assert (run_dir / "config.yaml").read_text() == config
    goes_on()
    process.send(signal.SIGKILL)
    process.end()
    assert len(saved_steps(run_dir)) == 1
    # This fails unless the checkpoint is complete.
    latest_checkpoint(run_dir)


def test_a_start_that_waited_for_the_lock_keeps_the_run_that_another_process_left(
    tmp_path: Path, server: Server
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with filelock.FileLock(run_dir / ".lock"):
        late = server.start("train", *CATCH, f"run_dir={run_dir}")
        late.wait_until(lambda: "waiting up to 10 s" in late.error)
        (run_dir / "config.yaml").write_text("of the first process\n")
    ended = late.end()
    assert ended.code == 2
    assert ended.last_line.startswith(f"error: run_dir={run_dir} already contains a run."), ended.error
    assert (run_dir / "config.yaml").read_text() == "of the first process\n"


@pytest.mark.parametrize("overlap", ["false", "true"])
def test_an_environment_that_keeps_failing_ends_the_run_with_a_checkpoint(
    overlap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gymnasium.envs.classic_control import CartPoleEnv

    step = CartPoleEnv.step
    calls = iter(range(10**6))

    def fails(self: CartPoleEnv, action: int) -> object:
        if next(calls) % 60 == 59:
            raise RuntimeError("the pole fell off")
        return step(self, action)

    monkeypatch.setattr(CartPoleEnv, "step", fails)
    run_dir = tmp_path / "run"
    with pytest.raises(SystemExit) as stopped:
        settings = ("env.max_restarts=2", "training.total_timesteps=2000", f"training.overlap={overlap}")
        start(run_dir, *CARTPOLE, *settings)
    assert stopped.value.code == ENVIRONMENT_EXIT_CODE
    log = (run_dir / "train.log").read_text()
    assert "the pole fell off" in log and "resume=" in log
    assert saved_steps(run_dir)


def test_checkpoints_of_another_run_are_refused_and_nothing_is_written(
    catch_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "first"
    shutil.copytree(catch_run, first)
    short = ("training.total_timesteps=60", "training.checkpoint_interval=60")
    other = start(tmp_path / "other", *CATCH, *short, "seed=2")
    shutil.rmtree(first / "checkpoints")
    shutil.copytree(other / "checkpoints", first / "checkpoints")
    before = files_in(first)
    capsys.readouterr()
    message = error_of(capsys, lambda: resume(first, "training.total_timesteps=400"))
    assert message == (
        f"{first}/checkpoints/step_000000060 was saved with seed=2, but {first}/config.yaml has seed=0. "
        "Restore the config.yaml of that run, or its checkpoints."
    )
    assert files_in(first) == before
