"""Runs that should compile without a working compiler, and faults during compilation."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml

from reverie.commands.certify import main as certify
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE

from ..runs.helpers import CATCH, error_of, saved_steps

SHORT = (*CATCH, "training.total_timesteps=60")


def test_without_a_compiler_a_run_is_not_compiled_and_stays_so(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "scripts/train.py", *SHORT, "compile=inductor", f"run_dir={run_dir}"]
    broken = os.environ | {"CXX": "no-such-compiler", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    subprocess.run(command, check=True, env=broken, capture_output=True)
    assert saved_steps(run_dir)[-1] == 60
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["compile"] == "none"
    log = (run_dir / "train.log").read_text()
    assert "WARNING compile=inductor is unavailable, using compile=none: " in log
    assert log.count("no-such-compiler") == 1


def test_ctrl_c_while_compiling_is_no_error_of_the_compiler(tmp_path: Path) -> None:
    """On a terminal, Ctrl-C also reaches the compiler and ends it."""
    compiler, run_dir = tmp_path / "compiler", tmp_path / "run"
    compiler.write_text("#!/bin/sh\n[ -e $0.ran ] || { touch $0.ran; kill -INT $PPID; }\nkill -INT $$\n")
    compiler.chmod(0o755)
    command = [sys.executable, "scripts/train.py", *SHORT, "compile=inductor", f"run_dir={run_dir}"]
    interrupted = os.environ | {"CXX": str(compiler), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    ended = subprocess.run(command, env=interrupted, capture_output=True, text=True)
    assert ended.returncode == RESUME_ME_EXIT_CODE
    assert (
        "is unavailable" not in ended.stderr
        and f"scripts/train.py resume={run_dir}" in ended.stderr.splitlines()[-1]
    )
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["compile"] == "inductor"


def test_a_second_ctrl_c_while_compiling_exits_immediately_as_the_first_one_says(tmp_path: Path) -> None:
    compiler, run_dir = tmp_path / "compiler", tmp_path / "run"
    # This compiler never finishes.
    compiler.write_text("#!/bin/sh\ntouch $0.ran\nexec sleep 1000\n")
    compiler.chmod(0o755)
    command = [sys.executable, "scripts/train.py", *SHORT, "compile=inductor", f"run_dir={run_dir}"]
    slow = os.environ | {"CXX": str(compiler), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}

    def wait_until(true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 900
        while not true():
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)

    with subprocess.Popen(command, env=slow, stderr=subprocess.DEVNULL) as run:
        try:
            wait_until((tmp_path / "compiler.ran").exists)
            run.send_signal(signal.SIGINT)
            told = "SIGINT: finishing the step and writing a checkpoint. A second Ctrl-C exits immediately."
            wait_until(lambda: told in (run_dir / "train.log").read_text())
            run.send_signal(signal.SIGINT)
            # This is long before the compiler would finish.
            assert run.wait(timeout=900) == -signal.SIGINT
            left = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
            assert not any(str(compiler) in each for each in left)
        finally:
            run.kill()


def test_without_a_terminal_a_run_that_compiles_says_so(tmp_path: Path) -> None:
    compiler, run_dir = tmp_path / "compiler", tmp_path / "run"
    compiler.write_text("#!/bin/sh\nsleep 60\nexit 1\n")
    compiler.chmod(0o755)
    command = [sys.executable, "scripts/train.py", *SHORT, "compile=inductor", f"run_dir={run_dir}"]
    slow = os.environ | {"CXX": str(compiler), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    with subprocess.Popen(command, env=slow, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr
        try:
            for line in run.stderr:
                if "still trying the compiler, 2" in line:
                    break
            else:
                raise AssertionError("nothing was said while it compiled")
        finally:
            run.kill()


@pytest.mark.parametrize("compiled", ["compile=inductor", "++compile=inductor", "compile='inductor'"])
def test_a_fault_is_not_put_into_compiled_code(compiled: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["certify.fault=rssm_cache_not_detached", compiled]
    error = error_of(capsys, lambda: certify(asked))
    put = "needs eager code, got compile=inductor. Set compile=none."
    assert error == f"certify.fault=rssm_cache_not_detached {put}"
