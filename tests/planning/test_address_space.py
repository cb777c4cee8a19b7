"""The address-space limit (`ulimit -v`) is part of the plan: a run is refused, or it finishes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..runs.helpers import CATCH

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit that is enforced")
SCRIPTS = Path(__file__).parents[2] / "scripts"
SHORT = (*CATCH, "training.total_timesteps=60")
GIB = 2**30
PLANNED_REFUSED_RUN = """
import contextlib, io, json, os, re, resource, runpy, sys
from pathlib import Path

scripts, *settings = sys.argv[1:]

def run(script, *arguments):
    sys.argv = [os.path.join(scripts, script), *settings, *arguments]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code
    return 0

with contextlib.redirect_stdout(io.StringIO()) as shown:
    run("plan_memory.py", "plan.format=json")
plan = json.loads(shown.getvalue().splitlines()[0])
codes, left = [], []
for share in (0.97, 1.03):
    soft, hard = int(share * plan["address_space.total_bytes"]), resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    codes.append(run("train.py", "run_dir=run"))
    left.append(os.listdir("."))
peak = 1024 * int(re.search(r"VmPeak:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"plan": plan, "codes": codes, "left": left, "peak": peak}))
"""


def limited(limit: int, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run Python under `ulimit -v`, whose soft limit the program may change."""
    shell = ["bash", "-c", f'ulimit -Sv {limit // 1024}; exec "$@"', "bash"]
    return subprocess.run([*shell, sys.executable, *command], capture_output=True, text=True)


@pytest.mark.parametrize("mib", [300, 660, 799, 801, 900])
def test_a_limit_that_is_too_low_is_one_sentence_and_leaves_nothing(mib: int, empty_folder: Path) -> None:
    ended = limited(mib * 2**20, str(SCRIPTS / "train.py"), *SHORT, "run_dir=run")
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert "ulimit -v" in ended.stderr and "Raise it" in ended.stderr and "h_vmem" in ended.stderr
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize(("storage", "threads"), [("ram", 1), ("mmap", 1), ("ram", 6)])
def test_the_plan_is_enough_for_the_run_and_not_far_above_its_peak(
    storage: str, threads: int, empty_folder: Path
) -> None:
    settings = [*SHORT, f"buffer.storage={storage}", "buffer.capacity=20000", f"threads={threads}"]
    ended = limited(8 * GIB, "-c", PLANNED_REFUSED_RUN, str(SCRIPTS), *settings)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    planned = found["plan"]["address_space.total_bytes"]
    assert found["plan"]["address_space.limit_bytes"] == 8 * GIB
    assert found["codes"] == [2, 0] and "of address space" in ended.stderr, ended.stderr
    assert found["left"] == [[], ["run"]]
    assert 0.7 * planned < found["peak"] < 1.03 * planned


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
