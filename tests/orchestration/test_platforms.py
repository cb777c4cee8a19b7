"""Runs work without Linux-only features, and Windows is rejected in Python and in commands."""

import signal
import sys
from pathlib import Path

import pytest

import reverie

from ..runs.helpers import CARTPOLE, identity, metrics_of
from ..runs.warm import Server

MAPPED = (*CARTPOLE, "buffer=mmap", "training.log_interval=20", "training.video_interval=0")


def test_a_run_as_on_macos_learns_what_one_on_linux_learns(server: Server, tmp_path: Path) -> None:
    linux, macos = tmp_path / "linux", tmp_path / "macos"
    short = (*MAPPED, "training.total_timesteps=60", "env.vectorization=async")
    for command, folder in (("train", linux), ("train_as_on_macos", macos)):
        ended = server.run(command, *short, f"run_dir={folder}")
        assert ended.code == 0, ended.error
    assert identity(macos) == identity(linux)
    counted = metrics_of(macos)[-1].keys() | metrics_of(macos)[0].keys()
    assert "debug/cpu/in_use_mb" in counted
    assert counted.isdisjoint({"debug/cpu/rss_anon_mb", "debug/cpu/shared_memory_mb"})


def test_a_run_as_on_macos_stops_by_a_signal_with_a_checkpoint(server: Server, tmp_path: Path) -> None:
    endless = (*MAPPED, "training.total_timesteps=1000000")
    process = server.start("train_as_on_macos", *endless, f"run_dir={tmp_path / 'run'}")
    process.wait_for("step 20 of", tmp_path / "run" / "train.log")
    process.send(signal.SIGTERM)
    ended = process.end()
    assert ended.code == 75 and list((tmp_path / "run" / "checkpoints").glob("step_*")), ended.error


def test_on_windows_python_is_refused_as_the_commands_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    for call in (lambda: reverie.load("pretrained:catch"), lambda: reverie.train("dreamer_catch")):
        with pytest.raises(reverie.UserError, match=r"this is Windows \(win32\).*WSL 2"):
            call()
