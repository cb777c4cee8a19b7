"""Environments that step during updates: the run is the same, and exits just as cleanly."""

import signal
from pathlib import Path
from threading import Semaphore, current_thread

import numpy as np
import pytest
from numpy.typing import NDArray

from reverie.envs import VectorEnvironment
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE
from reverie.testing.fingerprint import reproducible
from reverie.utils.timestep import TimeStep
from reverie.workflows import UpdateOutput
from reverie.workflows.world_models import DreamerWorkflow

from ..runs.helpers import CARTPOLE, CATCH, error_of, identity, metrics_of, resume, saved_steps, start
from ..runs.warm import LONG_ENOUGH_SECONDS, Server

OVERLAP = "training.overlap=true"


def test_a_broken_run_with_overlap_ends_as_the_unbroken_one_without(catch_run: Path, tmp_path: Path) -> None:
    run = start(tmp_path / "run", *CATCH, OVERLAP, "training.total_timesteps=150")
    resume(run, "training.total_timesteps=300")
    assert identity(run) == identity(catch_run)
    assert reproducible(metrics_of(run)) == reproducible(metrics_of(catch_run))


def test_a_step_that_waits_for_the_update_beside_it_comes_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In sequence they would wait forever. All calls that may render come from one thread."""
    learned, callers, acted, waits = Semaphore(0), set[str](), 0, 0
    step, reset, update = VectorEnvironment.step, VectorEnvironment.reset, DreamerWorkflow.update

    def patient(self: VectorEnvironment, action: NDArray[np.float32]) -> TimeStep:
        nonlocal acted, waits
        callers.add(current_thread().name)
        # An update is due for this step.
        if acted >= 20 and not self._require_last().is_first.any():
            assert learned.acquire(timeout=LONG_ENOUGH_SECONDS)
            waits += 1
        following = step(self, action)
        acted += int((~following.is_first).sum())
        return following

    def first(self: VectorEnvironment) -> TimeStep:
        callers.add(current_thread().name)
        return reset(self)

    def heard(self: DreamerWorkflow, batch: object) -> UpdateOutput:
        updated = update(self, batch)  # pyright: ignore[reportArgumentType]
        if self.device.type != "meta":
            learned.release()
        return updated

    monkeypatch.setattr(VectorEnvironment, "step", patient)
    monkeypatch.setattr(VectorEnvironment, "reset", first)
    monkeypatch.setattr(DreamerWorkflow, "update", heard)
    settings = ("training.learning_starts=20", "training.train_ratio=12", "training.total_timesteps=40")
    start(tmp_path / "run", *CARTPOLE, OVERLAP, *settings)
    assert waits > 15 and callers == {"environments"}


def test_a_signal_leaves_a_checkpoint_from_which_the_run_goes_on(tmp_path: Path, server: Server) -> None:
    run_dir = tmp_path / "run"
    endless = ("training.total_timesteps=1000000", "training.checkpoint_interval=0")
    process = server.start("train", *CATCH, OVERLAP, *endless, f"run_dir={run_dir}")
    process.wait_for("train/loss/total", run_dir / "metrics.jsonl")
    process.send(signal.SIGTERM)
    ended = process.end()
    assert (ended.code, "Traceback" in ended.error) == (RESUME_ME_EXIT_CODE, False), ended.error
    (step,) = saved_steps(run_dir)
    resume(run_dir, f"training.total_timesteps={step + 4}")
    assert saved_steps(run_dir) == [step, step + 4]


def test_a_run_without_environments_refuses_overlap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (*CARTPOLE, OVERLAP, "training.offline=true")
    text = error_of(capsys, lambda: start(tmp_path / "run", *settings))
    assert text == (
        "training.overlap=true steps environments during updates, but training.offline=true never steps "
        "them. Set one of them to false."
    )
    assert list(tmp_path.iterdir()) == []
