"""The doctor finds problems and suggests fixes. Each check is tested on both sides of its limit."""

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from reverie.commands.doctor import (
    Check,
    Health,
    diagnose,
    gloo_address,
    judge_disk,
    judge_load,
    judge_memory,
    judge_missing_gpu,
    judge_packages,
    judge_python,
    judge_ranks,
    judge_shared_memory,
    judge_system,
    main,
    report,
    why_no_exchange,
)
from reverie.envs import EnvConfig

from ..runs.helpers import error_of
from ..runs.ranks import LOOPBACK

SCRIPT = Path(__file__).parents[2] / "scripts" / "doctor.py"
SUBJECTS = "system Python packages PyTorch GPU Atari Gymnasium disk memory load ranks".split()
GIB = 2**30


def test_on_this_machine_everything_that_is_installed_works() -> None:
    states = {check.subject: check.health for check in diagnose()}
    assert {states[subject] for subject in ("packages", "PyTorch", "Atari", "Gymnasium")} == {Health.OK}


def test_an_environment_that_does_not_start_fails_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: EnvConfig) -> None:
        raise ImportError("no library")

    monkeypatch.setattr("reverie.envs.make_single", broken)
    checks = {check.subject: check for check in diagnose()}
    assert checks["Atari"].health is checks["Gymnasium"].health is Health.FAIL
    assert checks["Atari"].found == "ale-py does not start: ImportError: no library"
    assert checks["Atari"].fix.endswith(" -m pip install --force-reinstall --no-deps ale-py")
    assert checks["Gymnasium"].fix.endswith(" -m pip install 'gymnasium[classic-control]'")


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
    assert message == "unrecognized arguments: device=cuda. Use --help for usage."


def test_the_script_says_how_to_install_when_nothing_is_installed() -> None:
    # With -I -S, neither site-packages nor the editable install is visible.
    done = subprocess.run([sys.executable, "-I", "-S", str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "No module named 'reverie'" in done.stderr
    assert "pip install -c constraints.txt -e packages/heapwatch -e ." in done.stderr


@pytest.mark.parametrize(
    ("version", "health"),
    [((3, 10), Health.FAIL), ((3, 11), Health.OK), ((3, 12), Health.OK), ((3, 13), Health.WARN)],
)
def test_python_is_judged_by_the_versions_that_are_tested(version: tuple[int, int], health: Health) -> None:
    assert judge_python(version).health is health


@pytest.mark.parametrize(
    ("name", "health", "found"),
    [
        ("linux", Health.OK, "Linux"),
        ("darwin", Health.WARN, "macOS was tested only in a simulation: without /proc"),
        ("freebsd14", Health.WARN, "freebsd14 was never tested"),
    ],
)
def test_a_system_is_judged_by_what_it_lacks(name: str, health: Health, found: str) -> None:
    check = judge_system(name)
    assert check.health is health and check.found.startswith(found)


def test_a_package_that_is_too_old_or_missing_is_named_with_its_repair() -> None:
    check = judge_packages(
        ["pytest>=1", "numpy>=999", "no-such-package-of-ours", 'ruff>=999; extra == "dev"']
    )
    assert check.health is Health.FAIL
    assert "numpy" in check.found and "requires >=999" in check.found
    assert "no-such-package-of-ours not installed" in check.found
    assert "pytest" not in check.found and "ruff" not in check.found
    assert check.fix.endswith("-m pip install 'numpy>=999' no-such-package-of-ours")


def test_a_machine_without_a_gpu_is_told_what_it_can_do() -> None:
    check = judge_missing_gpu(None, None, "")
    assert check.health is Health.WARN
    assert "small CPU preset" in check.found
    # The README trains Pong on a CPU.
    assert check.fix.startswith("Optional: Catch, CartPole and Pong train on a CPU.")


def test_a_cpu_build_beside_a_gpu_is_repaired_by_one_command() -> None:
    check = judge_missing_gpu(None, "580.1", "")
    assert "CPU build" in check.found
    # It ignores PIP_EXTRA_INDEX_URL, with which pip would choose the CPU build again.
    assert " -m pip install --isolated --force-reinstall torch==" in check.fix and "+" not in check.fix


def test_a_driver_that_is_too_old_is_shown_with_the_words_of_pytorch() -> None:
    check = judge_missing_gpu("13.0", "470.1", "The NVIDIA driver on your system is too old.")
    assert "driver 470.1" in check.found and "CUDA 13.0" in check.found and "too old" in check.found


@pytest.mark.gpu
def test_a_working_gpu_is_named() -> None:
    [check] = [check for check in diagnose() if check.subject == "GPU"]
    assert check.health is not Health.FAIL
    assert "GiB free of" in check.found


@pytest.mark.parametrize(
    ("free", "health"),
    [(GIB - 1, Health.FAIL), (GIB, Health.WARN), (10 * GIB - 1, Health.WARN), (10 * GIB, Health.OK)],
)
def test_the_disk_is_judged_by_what_a_run_writes(free: int, health: Health) -> None:
    assert judge_disk(Path("here"), free, is_writable=True).health is health


def test_a_folder_that_cannot_be_written_to_fails_however_large_its_disk() -> None:
    assert judge_disk(Path("here"), 100 * GIB, is_writable=False).health is Health.FAIL


@pytest.mark.parametrize(
    ("free", "health"), [(None, Health.WARN), (64 * 2**20, Health.WARN), (GIB, Health.OK)]
)
def test_the_shared_memory_that_docker_gives_is_called_small(free: int | None, health: Health) -> None:
    assert judge_shared_memory(free).health is health


def test_two_ranks_exchange_or_the_interface_is_named_that_they_should_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", LOOPBACK)
    check = judge_ranks(why_no_exchange(), gloo_address())
    assert check.health is Health.OK
    assert check.found.startswith(f"gloo works over {LOOPBACK}, for up to one rank per ")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    check = judge_ranks(why_no_exchange(), gloo_address())
    assert check.health is Health.WARN and "nowhere0" in check.found
    assert "GLOO_SOCKET_IFNAME=lo on" in check.fix


def test_a_machine_whose_name_has_no_address_or_its_own_alone_is_told_what_to_set() -> None:
    assert "need GLOO_SOCKET_IFNAME=" in judge_ranks("", "127.0.1.1").found
    assert "need" not in judge_ranks("", "10.0.0.1").found
    assert judge_ranks("", None).health is Health.WARN


@pytest.mark.parametrize(
    ("available", "limit", "health", "repair"),
    [
        (8 * GIB, None, Health.OK, ""),
        (4 * GIB, 4 * GIB, Health.OK, ""),
        (3 * GIB, None, Health.WARN, "buffer.capacity"),
        (1 * GIB, 4 * GIB, Health.FAIL, "buffer.capacity"),
        (1 * GIB, 1 * GIB, Health.FAIL, "docker run --memory"),
        (2 * GIB, 3 * GIB, Health.WARN, "docker run --memory"),
    ],
)
def test_memory_that_is_short_is_repaired_where_the_limit_is(
    available: int, limit: int | None, health: Health, repair: str
) -> None:
    check = judge_memory(available, limit)
    assert check.health is health
    assert repair in check.fix


@pytest.mark.parametrize(
    ("load", "cpus", "health", "found"),
    [
        (0.0, 1, Health.OK, "load average 0.0 on 1 usable CPU: one CPU is free for a single-threaded run"),
        (3.0, 4, Health.OK, "load average 3.0 on 4 usable CPUs: "),
        (3.0, 2, Health.WARN, "runs are up to 2.0 times slower than documented"),
        (20.0, 2, Health.WARN, "runs are up to 10.5 times slower than documented"),
    ],
)
def test_the_load_is_judged_by_how_much_longer_runs_take(
    load: float, cpus: int, health: Health, found: str
) -> None:
    check = judge_load(load, cpus)
    assert check.health is health and found in check.found
    assert ("threads=1" in check.fix) == (health is Health.WARN)


def test_one_thread_is_not_suggested_on_one_cpu() -> None:
    assert judge_load(3.0, 1).fix == "Stop other programs"


@pytest.mark.parametrize(("health", "code"), [(Health.OK, 0), (Health.WARN, 0), (Health.FAIL, 1)])
def test_only_a_failed_check_is_an_error(health: Health, code: int) -> None:
    console = Console(file=StringIO(), width=60)
    assert report([Check("disk", Health.OK, "fine"), Check("memory", health, "some")], console) == code


def test_a_fix_is_printed_unbroken_and_as_it_is_so_that_it_can_be_pasted() -> None:
    fix = f"{'long/' * 20}python -m pip install 'gymnasium[classic-control]>=1.2'"
    output = StringIO()
    report([Check("packages", Health.FAIL, "[bold] gone", fix)], Console(file=output, width=60))
    assert f"FAIL packages: {fix}" in output.getvalue().splitlines()
    assert "[bold] gone" in output.getvalue()
