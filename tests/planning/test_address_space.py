"""The address-space limit (`ulimit -v`) is part of the plan: a run is refused, or it finishes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..runs.helpers import CATCH

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit that is enforced")
ROOT = Path(__file__).parents[2]
SHORT = (*CATCH, "training.total_timesteps=60")
GIB = 2**30
MEASURED = """
import atexit, re, runpy, sys
from pathlib import Path
peak = lambda: re.search(r"VmPeak:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
atexit.register(lambda: print("peak", peak()))
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def limited(script: str, limit: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a script of this repository under `ulimit -v`."""
    command = [sys.executable, "-c", MEASURED, str(ROOT / "scripts" / script), *arguments]
    shell = ["bash", "-c", f'ulimit -v {limit // 1024}; exec "$@"', "bash"]
    return subprocess.run([*shell, *command], capture_output=True, text=True)


@pytest.mark.parametrize("mib", [300, 660, 799, 801, 900])
def test_a_limit_that_is_too_low_is_one_sentence_and_leaves_nothing(mib: int, empty_folder: Path) -> None:
    ended = limited("train.py", mib * 2**20, *SHORT, "run_dir=run")
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert "ulimit -v" in ended.stderr and "Raise it" in ended.stderr and "h_vmem" in ended.stderr
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize(("storage", "threads"), [("ram", 1), ("mmap", 1), ("ram", 6)])
def test_the_plan_is_enough_for_the_run_and_not_far_above_its_peak(
    storage: str, threads: int, empty_folder: Path
) -> None:
    settings = [*SHORT, f"buffer.storage={storage}", "buffer.capacity=20000", f"threads={threads}"]
    shown = limited("plan_memory.py", 8 * GIB, *settings, "plan.format=json")
    plan = json.loads(shown.stdout.splitlines()[0])
    assert plan["address_space.limit_bytes"] == 8 * GIB
    planned = plan["address_space.total_bytes"]
    refused = limited("train.py", int(0.97 * planned), *settings, "run_dir=run")
    assert refused.returncode == 2 and "of address space" in refused.stderr, refused.stderr
    assert list(empty_folder.iterdir()) == []
    ended = limited("train.py", int(1.03 * planned), *settings, "run_dir=run")
    assert ended.returncode == 0, ended.stderr
    assert 0.7 * planned < 1024 * int(ended.stdout.split()[-1]) < 1.03 * planned


@pytest.mark.parametrize(
    "error",
    [
        "MemoryError()",
        "SystemError('error return without exception set')",
        "RuntimeError('std::bad_alloc')",
        "ImportError('x.so: failed to map segment from shared object')",
        "OSError(12, 'Cannot allocate memory')",
    ],
)
def test_each_form_that_a_failed_allocation_takes_names_the_limit(error: str) -> None:
    program = f"from reverie.utils.errors import exit_on_user_error\nwith exit_on_user_error(): raise {error}"
    shell = ["bash", "-c", 'ulimit -v 4000000; exec "$@"', "bash"]
    ended = subprocess.run([*shell, sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 2 and "4,000,000 KiB (ulimit -v) is exhausted" in ended.stderr, ended.stderr
    without = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert without.returncode == 1 and "Traceback" in without.stderr
