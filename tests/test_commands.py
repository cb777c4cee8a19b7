"""All commands: help, invalid arguments, Ctrl-C during imports, and unsupported systems."""

import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reverie.commands import entry as commands

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))
LOADING = {
    "train": "device=cpu",
    "evaluate": "run=pretrained:catch",
    "plan_memory": "device=cpu",
    "certify_memory": "device=cpu",
    "doctor": "--help",
    "benchmark": "--help",
    "sweep": "--help",
}
"""Commands with an argument for which they import torch."""
# In lines.
ONE_SCREEN = 40
LONG_ENOUGH_SECONDS = 60.0


@pytest.fixture(autouse=True)
def hook_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the exception hook that commands replace."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


def run_here(script: str, argument: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a script in this process, where torch is imported, and return its exit code."""
    monkeypatch.setattr(sys, "argv", [script, argument])
    try:
        runpy.run_path(str(ROOT / "scripts" / script), run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_takes_one_screen(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(script, "--help", monkeypatch) == 0
    shown = capsys.readouterr()
    assert 1 < len(shown.out.splitlines()) <= ONE_SCREEN and shown.err == ""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_wrong_argument_is_one_sentence(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(script, "--nonsense", monkeypatch) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: ") and shown.err.count("\n") == 1


@pytest.mark.parametrize("name", LOADING)
def test_ctrl_c_while_a_command_loads_is_one_line(name: str) -> None:
    process = subprocess.Popen(
        [sys.executable, f"scripts/{name}.py", LOADING[name]],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # A shell disables Ctrl-C for a background job.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    maps, end = Path(f"/proc/{process.pid}/maps"), time.monotonic() + LONG_ENOUGH_SECONDS
    while "libtorch_cpu" not in maps.read_text() and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    error = process.communicate()[1]
    assert (process.returncode, error) == (-signal.SIGINT, "interrupted\n")


@pytest.mark.parametrize("name", ["train", "evaluate", "plan", "certify", "doctor"])
def test_on_windows_a_command_is_one_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as ended:
        getattr(commands, name)()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    assert "this is Windows (win32)" in error and "WSL 2" in error


def test_a_package_that_is_missing_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.command(".no_such_part")()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    assert "No module named 'reverie.commands.no_such_part'" in error and "pip install" in error
