"""`make train` and Ctrl-C: an end with a checkpoint is calm, a failure is shown as one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from reverie.orchestration.signals import RESUME_ME_EXIT_CODE

from ..runs.helpers import CARTPOLE, saved_steps
from ..runs.warm import LONG_ENOUGH_SECONDS

ROOT = Path(__file__).parents[2]
OF_AN_OUTER_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # which runs the tests


def make_train(folder: Path, *overrides: str) -> "subprocess.Popen[str]":
    """Start `make train` with this Python, in a group of its own, as a terminal does."""
    ready = folder / "ready"
    ready.touch()  # newer than pyproject.toml: nothing is installed
    settings = [f"READY={ready}", f"BIN={Path(sys.executable).parent}", "EXPERIMENT=dreamer_cartpole"]
    return subprocess.Popen(
        ["make", "train", *settings, f"ARGS={' '.join(overrides)}"],
        cwd=ROOT,
        env={name: text for name, text in os.environ.items() if name not in OF_AN_OUTER_MAKE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )


def heed_ctrl_c() -> None:
    """Undo what a shell does to jobs in its background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_a_step(run_dir: Path) -> None:
    end, log = time.monotonic() + LONG_ENOUGH_SECONDS, run_dir / "metrics.jsonl"
    while not (log.exists() and log.stat().st_size) and time.monotonic() < end:
        time.sleep(0.02)


def test_ctrl_c_ends_with_the_command_that_resumes_as_the_last_line(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    endless = ("training.total_timesteps=1000000", "memory.plan=warn", f"run_dir={run_dir}")
    process = make_train(tmp_path, *CARTPOLE[1:], *endless)
    wait_for_a_step(run_dir)
    os.killpg(process.pid, signal.SIGINT)
    shown = process.communicate()[0]
    assert process.returncode == -signal.SIGINT  # as a shell expects it of make
    assert "interrupted; continue with resume=" in shown.splitlines()[-1]
    assert saved_steps(run_dir)[-1] > 0


def test_a_failure_and_a_stop_that_make_does_not_know_of_are_errors(tmp_path: Path) -> None:
    process = make_train(tmp_path, "model=nonsense")
    shown = process.communicate()[0]
    assert process.returncode == 2 and "there is no model `nonsense`" in shown
    assert "Error 2" in shown.splitlines()[-1]

    code = f"import os, signal, sys; os.kill(os.getppid(), {{number}}); sys.exit({RESUME_ME_EXIT_CODE})"
    script, wrapper = tmp_path / "script.py", [sys.executable, "scripts/for_make.py"]
    for number, expected in ((0, RESUME_ME_EXIT_CODE), (int(signal.SIGINT), 0)):
        script.write_text(code.format(number=number))
        assert subprocess.run([*wrapper, script], cwd=ROOT, check=False).returncode == expected
