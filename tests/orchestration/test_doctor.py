"""The doctor finds what is wrong and says what to do; each judgement is tried on both sides of its limit."""

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from reverie.commands.doctor import (
    Finding,
    Verdict,
    diagnose,
    judge_disk,
    judge_memory,
    judge_missing_gpu,
    judge_packages,
    judge_python,
    judge_shared_memory,
    judge_system,
    main,
    report,
)

from .helpers import error_of

SCRIPT = Path(__file__).parents[2] / "scripts" / "doctor.py"
SUBJECTS = "system Python packages PyTorch GPU Atari Gymnasium disk memory".split()
GIB = 2**30


def test_on_this_machine_everything_that_is_installed_works() -> None:
    verdicts = {finding.subject: finding.verdict for finding in diagnose()}
    assert {verdicts[subject] for subject in ("packages", "PyTorch", "Atari", "Gymnasium")} == {Verdict.OK}


def test_the_script_prints_every_check_and_fails_only_with_a_failed_check() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert [subject for subject in SUBJECTS if subject not in done.stdout] == []
    assert done.returncode == int("FAIL" in done.stdout), done.stderr


def test_help_is_shown_and_all_else_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    assert "whether this machine can train" in capsys.readouterr().out
    message = error_of(capsys, lambda: main(["device=cuda"]))
    assert message == "unrecognized arguments: device=cuda; --help shows how to write the command."


def test_the_script_says_how_to_install_when_nothing_is_installed() -> None:
    # -I -S: neither site-packages nor the editable install are seen.
    done = subprocess.run([sys.executable, "-I", "-S", str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "No module named 'reverie'" in done.stderr
    assert "pip install -c constraints.txt -e ." in done.stderr


@pytest.mark.parametrize(
    ("version", "verdict"),
    [((3, 10), Verdict.FAIL), ((3, 11), Verdict.OK), ((3, 12), Verdict.OK), ((3, 13), Verdict.WARN)],
)
def test_python_is_judged_by_the_versions_that_are_tested(version: tuple[int, int], verdict: Verdict) -> None:
    assert judge_python(version).verdict is verdict


@pytest.mark.parametrize(
    ("name", "verdict", "found"),
    [("linux", Verdict.OK, "Linux"), ("darwin", Verdict.WARN, "macOS was never tried: without /proc")],
)
def test_a_system_is_judged_by_what_it_lacks(name: str, verdict: Verdict, found: str) -> None:
    finding = judge_system(name)
    assert finding.verdict is verdict and finding.found.startswith(found)


def test_a_package_that_is_too_old_or_missing_is_named_with_its_repair() -> None:
    finding = judge_packages(
        ["pytest>=1", "numpy>=999", "no-such-package-of-ours", 'ruff>=999; extra == "dev"']
    )
    assert finding.verdict is Verdict.FAIL
    assert "numpy" in finding.found and "needs >=999" in finding.found
    assert "no-such-package-of-ours not installed" in finding.found
    assert "pytest" not in finding.found and "ruff" not in finding.found
    assert finding.fix.endswith("-m pip install 'numpy>=999' no-such-package-of-ours")


def test_a_machine_without_a_gpu_is_told_what_it_can_do() -> None:
    finding = judge_missing_gpu(None, None, "")
    assert finding.verdict is Verdict.WARN
    assert "small CPU preset" in finding.found


def test_a_cpu_build_beside_a_gpu_is_repaired_by_one_command() -> None:
    finding = judge_missing_gpu(None, "580.1", "")
    assert "CPU build" in finding.found
    assert "pip install --force-reinstall torch==" in finding.fix and "+" not in finding.fix


def test_a_driver_that_is_too_old_is_shown_with_the_words_of_pytorch() -> None:
    finding = judge_missing_gpu("13.0", "470.1", "The NVIDIA driver on your system is too old.")
    assert "driver 470.1" in finding.found and "CUDA 13.0" in finding.found and "too old" in finding.found


@pytest.mark.gpu
def test_a_working_gpu_is_named() -> None:
    [finding] = [finding for finding in diagnose() if finding.subject == "GPU"]
    assert finding.verdict is not Verdict.FAIL
    assert "GiB free of" in finding.found


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(GIB - 1, Verdict.FAIL), (GIB, Verdict.WARN), (10 * GIB - 1, Verdict.WARN), (10 * GIB, Verdict.OK)],
)
def test_the_disk_is_judged_by_what_a_run_writes(free: int, verdict: Verdict) -> None:
    assert judge_disk(Path("here"), free, is_writable=True).verdict is verdict


def test_a_folder_that_cannot_be_written_to_fails_however_large_its_disk() -> None:
    assert judge_disk(Path("here"), 100 * GIB, is_writable=False).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("free", "verdict"), [(None, Verdict.WARN), (64 * 2**20, Verdict.WARN), (GIB, Verdict.OK)]
)
def test_the_shared_memory_that_docker_gives_is_called_small(free: int | None, verdict: Verdict) -> None:
    assert judge_shared_memory(free).verdict is verdict


@pytest.mark.parametrize(
    ("available", "limit", "verdict", "repair"),
    [
        (8 * GIB, None, Verdict.OK, ""),
        (4 * GIB, 4 * GIB, Verdict.OK, ""),
        (3 * GIB, None, Verdict.WARN, "buffer.capacity"),
        (1 * GIB, 4 * GIB, Verdict.FAIL, "buffer.capacity"),
        (1 * GIB, 1 * GIB, Verdict.FAIL, "docker run --memory"),
        (2 * GIB, 3 * GIB, Verdict.WARN, "docker run --memory"),
    ],
)
def test_memory_that_is_short_is_repaired_where_the_limit_is(
    available: int, limit: int | None, verdict: Verdict, repair: str
) -> None:
    finding = judge_memory(available, limit)
    assert finding.verdict is verdict
    assert repair in finding.fix


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.OK, 0), (Verdict.WARN, 0), (Verdict.FAIL, 1)])
def test_only_a_failed_check_is_an_error(verdict: Verdict, code: int) -> None:
    console = Console(file=StringIO(), width=60)
    assert report([Finding("disk", Verdict.OK, "fine"), Finding("memory", verdict, "some")], console) == code


def test_a_fix_is_printed_unbroken_and_as_it_is_so_that_it_can_be_pasted() -> None:
    fix = f"{'long/' * 20}python -m pip install 'gymnasium[classic-control]>=1.2'"
    output = StringIO()
    report([Finding("packages", Verdict.FAIL, "[bold] gone", fix)], Console(file=output, width=60))
    assert f"FAIL packages: {fix}" in output.getvalue().splitlines()
    assert "[bold] gone" in output.getvalue()
