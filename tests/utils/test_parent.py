"""Child processes end with their parent, however it ends and whatever they are doing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import gymnasium
import psutil
import pytest

from reverie.envs.config import EnvConfig
from reverie.envs.workers import LocalEnv, SubprocessEnv

from ..runs.forked_ranks import free_port
from ..runs.warm import wait_until

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240.0
SLEEP = "import time; time.sleep(600)"
KEEP_THE_GIL = "import ctypes; ctypes.PyDLL(None).sleep(600)"
STOP = "import signal; os.kill(os.getpid(), signal.SIGSTOP)"
NOTE = "import os, pathlib; pathlib.Path('pids', str(os.getpid())).touch()"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process that is stuck lives on")


@pytest.fixture(autouse=True)
def folder_of_pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pids").mkdir()
    monkeypatch.chdir(tmp_path)


@contextmanager
def parent_of(
    count: int, *command: str, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program, wait until it has `count` children, and check that they end after the block."""
    variables = os.environ | {"PYTHONPATH": os.getcwd()} | dict(environment or {})
    process = subprocess.Popen(command, env=variables)
    try:
        wait_until(lambda: len(pids()) == count)
        yield process
        wait_until(lambda: not any(map(lives, pids())))
    finally:
        process.kill()
        process.wait()
        for pid in filter(lives, pids()):
            os.kill(pid, signal.SIGKILL)


def pids() -> list[int]:
    return [int(path.name) for path in Path("pids").iterdir()]


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("when", "work"),
    [("import", SLEEP), ("call", SLEEP), ("call", KEEP_THE_GIL), ("call", STOP)],
    ids=["imports", "sleeps", "keeps the GIL", "is stopped"],
)
def test_a_worker_ends_with_the_process_that_started_it(when: str, work: str) -> None:
    Path("slow.py").write_text(
        "import sys\n"
        f"def make():\n    {NOTE}\n    {work}\n"
        f"if '--multiprocessing-fork' in sys.orig_argv and {when == 'import'}:\n    make()\n"
    )
    Path("main.py").write_text(
        "import time\nfrom reverie.envs.workers import SubprocessEnv\nimport slow\n"
        "if __name__ == '__main__':\n    env = SubprocessEnv(slow.make, 'slow', 0.0)\n    time.sleep(600)\n"
    )
    with parent_of(1, sys.executable, "main.py") as process:
        process.kill()


def test_a_worker_outlives_the_thread_that_started_it() -> None:
    make = partial(LocalEnv, gymnasium.spec("CartPole-v1"), EnvConfig(id="CartPole-v1", action_repeat=1))
    made: list[SubprocessEnv] = []

    def start() -> None:
        made.append(SubprocessEnv(make, "environment 0", PATIENCE_SECONDS))
        made[0].wait_until_ready()

    thread = Thread(target=start)
    thread.start()
    thread.join()
    try:
        made[0].send(0)
        assert made[0].receive()[1:] == (0.0, False, False, {})
    finally:
        made[0].terminate()


def test_ranks_end_with_torchrun() -> None:
    Path("rank.py").write_text(
        f"import reverie\n{NOTE}\nexec({[SLEEP, KEEP_THE_GIL, STOP]!r}[int(os.environ['LOCAL_RANK'])])\n"
    )
    with parent_of(3, *TORCHRUN, "--nproc-per-node=3", sys.executable, "rank.py") as torchrun:
        torchrun.kill()


def test_a_rank_that_a_shell_has_started_ends_with_torchrun() -> None:
    Path("rank.py").write_text(f"import reverie\n{NOTE}\n{SLEEP}\n")
    shell = ("sh", "-c", f"{sys.executable} rank.py; true")
    with parent_of(1, *TORCHRUN, *shell) as torchrun:
        torchrun.kill()


def test_a_rank_ends_that_finds_no_torchrun_when_it_starts() -> None:
    run = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    run |= {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{free_port()}",
    }
    with parent_of(1, sys.executable, "-c", f"{NOTE}; import reverie; {SLEEP}", environment=run) as rank:
        wait_until(lambda: rank.poll() is not None)


def test_a_program_that_make_runs_ends_with_its_wrapper() -> None:
    Path("script.py").write_text(f"import reverie\n{NOTE}\n{SLEEP}\n")
    with parent_of(1, sys.executable, str(ROOT / "scripts" / "for_make.py"), "script.py") as wrapper:
        wrapper.kill()
