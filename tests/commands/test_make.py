"""`make train` and Ctrl-C: an exit with a checkpoint is not an error, but a failure is."""

import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reverie.checkpoints.run_folder import save_config
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE

from ..runs.helpers import CARTPOLE, CATCH, saved_steps, start
from ..runs.warm import LONG_ENOUGH_SECONDS

ROOT = Path(__file__).parents[2]
# A make that runs the tests sets these variables.
OF_AN_OUTER_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")


def environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name not in OF_AN_OUTER_MAKE}


def make_train(folder: Path, *overrides: str) -> "subprocess.Popen[str]":
    """Start `make train`."""
    return make(folder, "train", "EXPERIMENT=dreamer_cartpole", f"ARGS={' '.join(overrides)}")


def make(folder: Path, target: str, *variables: str) -> "subprocess.Popen[str]":
    """Start make with this Python in its own process group, as a terminal does."""
    ready = folder / "ready"
    # It is newer than pyproject.toml, so no packages are installed.
    ready.touch()
    settings = [f"CORE={ready}", f"BIN={Path(sys.executable).parent}"]
    return subprocess.Popen(
        ["make", target, *settings, *variables],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell disables Ctrl-C for a background job.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


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
    assert f"continuing {run_dir}" not in shown
    # A shell expects this from make.
    assert process.returncode == -signal.SIGINT
    found = re.search(r"interrupted; continue with: (.+)$", shown.splitlines()[-1])
    assert found and saved_steps(run_dir)[-1] > 0
    last = saved_steps(run_dir)[-1] + 40
    pasted = [*shlex.split(found[1]), f"training.total_timesteps={last}"]
    subprocess.run(pasted, cwd=ROOT, check=True, capture_output=True)
    assert saved_steps(run_dir)[-1] == last


def test_make_first_continues_what_is_there_and_draws_the_report_of_a_finished_run_again(
    tmp_path: Path,
) -> None:
    first = tmp_path / "first"
    short = " ".join([*CATCH[1:], "training.total_timesteps=60"])
    for arguments in (short, "", "training.total_timesteps=80"):
        process = make(tmp_path, "first", f"FIRST={first}", f"ARGS={arguments}")
        shown = process.communicate()[0]
        assert process.returncode == 0, shown
        assert "finished" in shown and (first / "report.html").stat().st_size
        (first / "report.html").unlink()
    assert saved_steps(first) == [60, 80]


def test_the_same_make_train_again_resumes_a_finished_run_and_one_without_a_checkpoint(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    settings = (*CARTPOLE[1:], "seed=3", "buffer=ram", "training.total_timesteps=60")
    start(run_dir, CARTPOLE[0], *settings)
    for notice in ("resuming", "no checkpoint yet: the run starts over"):
        process = make_train(tmp_path, *settings, f"run_dir={run_dir}")
        shown = process.communicate()[0]
        assert process.returncode == 0, shown
        assert notice in shown and f"continuing {run_dir}." in shown
        assert "finished" in shown and saved_steps(run_dir) == [60]
        # This is the state after a kill before the first checkpoint.
        shutil.rmtree(run_dir / "checkpoints")


def test_without_a_folder_each_experiment_and_each_set_of_arguments_has_one(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    continued = runpy.run_path(str(ROOT / "scripts" / "for_make.py"))["continued"]
    begun = [["experiment=a"], ["experiment=b"], ["experiment=a", "seed=1"], ["experiment=a", "seed=2"]]
    folders = [continued(words)[-1].removeprefix("run_dir=") for words in begun]
    assert folders[0] == "experiments/a" and len({*folders}) == 4
    for words, folder in zip(begun, folders, strict=True):
        assert continued(words) == [*words, f"run_dir={folder}"]
        Path(folder).mkdir(parents=True)
        # The folder contains no run.
        assert continued(words) == [*words, f"run_dir={folder}"]
        Path(folder, "config.yaml").write_text("\n".join(["name: catch", *words[1:]]).replace("=", ": "))
        assert continued(words) == [f"resume={folder}"]
        assert f"continuing {folder}." in capsys.readouterr().out
    for words in (["experiment=a", "--help"], ["experiment=a", "resume=run"], ["-m", "seed=1,2"]):
        assert continued(words) == words


def test_arguments_that_differ_from_a_run_are_passed_on_and_the_others_are_omitted(tmp_path: Path) -> None:
    continued = runpy.run_path(str(ROOT / "scripts" / "for_make.py"))["continued"]
    first = ["experiment=dreamer_catch", "device=cpu", f"run_dir={tmp_path}"]
    own = ["seed=5", "seed=1", "optimizer.learning_rate=4e-05"]
    own += ["model=debug", "model.units=8", "training=small"]
    [config] = compose_jobs([*first, *own])
    save_config(typed(config), tmp_path)
    assert continued([*first, *own]) == continued(first) == [f"resume={tmp_path}"]
    # The run itself rejects settings and groups that cannot change.
    for changed in (
        ["training.total_timesteps=7", "seed=2"],
        ["model=size12m"],
        ["env=atari"],
        ["buffer=mmap"],
        ["env.kwargs.size=8"],
        ["experiment=dreamer_cartpole"],
    ):
        assert sorted(continued([*first, *own, *changed])) == sorted([f"resume={tmp_path}", *changed])


def test_an_environment_without_pip_is_repaired(tmp_path: Path) -> None:
    """A `.venv` has a Python and no pip after Ctrl-C, or without Debian's python3-venv."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    shown = made_core(tmp_path)
    assert shown.returncode == 0, shown.stderr
    subprocess.run([tmp_path / "venv" / "bin" / "python", "-m", "pip", "--version"], check=True)


@pytest.mark.parametrize("version", [(3, 10), (3, 13)])
def test_another_python_is_rejected_with_the_way_out(tmp_path: Path, version: tuple[int, int]) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    code = f"import sys; sys.version_info = ({version[0]}, {version[1]}, 0); exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$2"\n')
    python.chmod(0o755)
    shown = made_core(tmp_path)
    assert shown.returncode == 2
    line = f".venv has Python {version[0]}.{version[1]}, but 3.11 or 3.12 is required. "
    core = tmp_path / "core"
    assert shown.stderr.startswith(f"{line}Run: rm -rf .venv && make PYTHON=python3.12 {core}\n")


def made_core(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Make the folder's virtual environment, without installing packages."""
    return subprocess.run(
        ["make", folder / "core", f"CORE={folder / 'core'}", f"BIN={folder / 'venv' / 'bin'}", "INSTALL=:"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_number_of_test_workers_is_found_without_nproc(tmp_path: Path) -> None:
    """macOS does not have it."""
    for name in ("make", "getconf"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "ready").touch()
    shown = subprocess.run(
        [tmp_path / "make", "--dry-run", "test", f"READY={tmp_path / 'ready'}"],
        cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f" -n {2 * os.sysconf('SC_NPROCESSORS_ONLN')} " in shown.stdout


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
