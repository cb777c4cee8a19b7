"""Runs are unaffected if an environment or the program changes process settings."""

import shutil
import signal
from functools import partial
from pathlib import Path

import torch

import reverie
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE
from tests.envs import meddling
from tests.runs.helpers import CARTPOLE, saved_steps
from tests.runs.warm import Server

MEDDLER = (*CARTPOLE, "env.id=python/meddling.Meddler-v0", "env.kwargs.moment=always", "run_dir=run")


def is_heeded_or_lost(log: Path, lines: int) -> bool:
    """Return whether a run heeds a signal, or logged a number of lines without doing so."""
    # The report of the signal itself is lost if the environment has changed logging at this moment.
    text = log.read_text()
    return "interrupted;" in text or text.count("updates/s") >= lines


def test_a_signal_ends_a_run_with_a_checkpoint_in_its_folder_and_it_resumes(
    tmp_path: Path, server: Server
) -> None:
    # The environment changes to this folder.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(meddling.__file__, tmp_path)
    place = {"folder": tmp_path, "environment": {"TMPDIR": str(elsewhere)}}
    process = server.start("train", *MEDDLER, "training.total_timesteps=1000000", **place)
    run_dir = tmp_path / "run"
    log = run_dir / "train.log"
    process.wait_for("updates/s", log)
    # A signal that arrives between a change of the handler and its restoration is lost.
    while "interrupted;" not in log.read_text():
        process.send(signal.SIGTERM)
        more = log.read_text().count("updates/s") + 2
        process.wait_until(partial(is_heeded_or_lost, log, more))
    ended = process.end()
    assert (ended.code, "Traceback" in ended.error) == (RESUME_ME_EXIT_CODE, False)
    assert "continue with resume=run" in ended.error
    (step,) = saved_steps(run_dir)[-1:]
    assert log.read_text().count("Meddler-v0 changed the working directory") == 1

    ended = server.run("train", "resume=run", f"training.total_timesteps={step + 20}", **place)
    assert (ended.code, saved_steps(run_dir)[-1]) == (0, step + 20)
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"elsewhere", "meddling.py", "run"}
    assert list(elsewhere.iterdir()) == []


def test_training_ignores_what_the_program_has_set_in_torch_and_restores_it(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    try:
        run = reverie.train(overrides=[*CARTPOLE, f"run_dir={tmp_path / 'run'}"], total_timesteps=60)
        found = torch.get_default_dtype(), torch.get_default_device().type, torch.is_grad_enabled()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
    assert saved_steps(run.run_dir) == [60]
    assert found == (torch.float64, "meta", False)
