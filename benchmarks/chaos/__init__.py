"""Repeatedly kill and resume a training run, and compare the result with an uninterrupted run.

Run it with `python scripts/chaos.py`. `reverie.testing.fingerprint` defines the comparison.
"""

import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from reverie.checkpoints.checkpoint import CHECKPOINTS
from reverie.checkpoints.run_folder import CONFIG_FILE
from reverie.commands.options import own_settings
from reverie.config.compose import compose_jobs
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE
from reverie.testing.fingerprint import fingerprint
from reverie.utils.durable_io import UNFINISHED
from reverie.utils.errors import UserError, exit_on_user_error, require_range
from reverie.utils.logging.json_lines import METRICS_FILE
from reverie.utils.ranks import RANK_EXIT_CODE
from reverie.utils.units import count_text

RESULT = "chaos.json"
_POLL_SECONDS = 0.0005
_PATIENCE_SECONDS = 120.0
_LOST_SECONDS = 30.0
_ORPHAN_SECONDS = 10.0
_TORCHRUN_SECONDS = 90.0
_MARK = "REVERIE_CHAOS"
_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

_TRAIN = [sys.executable, "-c", "from reverie.commands.command_line import main; main()"]
_PREFIX = "chaos."
_USAGE = """\
Kill a run at random moments, resume it each time, and compare it with an uninterrupted run.

  python scripts/chaos.py experiment=dreamer_catch device=cpu chaos.kills=20 chaos.out=<folder>

chaos.torchrun=true kills torchrun, or one of its ranks, and requires that all processes end within 10 s.

"""


@dataclass(kw_only=True, slots=True)
class ChaosConfig:
    """Settings of `scripts/chaos.py`, typed as `chaos.<name>=<value>`."""

    kills: int = 20
    """Number of kills."""

    seed: int = 0
    """Seed of the kill times and signals."""

    ranks: int = 1
    """Number of processes that share the run. One of them, chosen at random, is killed each time."""

    torchrun: bool = False
    """Start the ranks with `torchrun`, and kill torchrun or one of its ranks."""

    longest_life: float = 10.0
    """Maximum lifetime of a process in seconds, unless the kill waits for a write."""

    out: str = "chaos"
    """Folder for both runs and for chaos.json. It must not exist yet."""

    def __post_init__(self) -> None:
        require_range("chaos", self, "kills", "ranks", ge=1)
        require_range("chaos", self, "longest_life", gt=0)
        if Path(self.out).exists():
            raise UserError(f"chaos.out={self.out} exists already. Choose another folder.")


@dataclass(frozen=True, slots=True)
class Kill:
    """Time and cause of the end of one process."""

    phase: str
    """Event that triggered the kill: `any moment` or a kind of write."""

    signal: str
    exit_code: int
    seconds: float
    """Lifetime of the process."""

    target: str = "run"
    """Target of the kill: the `run`, `torchrun`, or a `rank` of torchrun."""

    seconds_to_end: float | None = None
    """Seconds until all processes had ended, measured only under torchrun."""


@dataclass(slots=True)
class ChaosResult:
    """The result of both runs."""

    overrides: list[str]
    seed: int
    ranks: int = 1
    torchrun: bool = False
    kills: list[Kill] = field(default_factory=list)
    unbroken: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether the hashes of both runs all match."""
        return bool(self.unbroken) and self.unbroken == self.broken

    def as_json(self) -> str:
        """Return the result as JSON text."""
        return json.dumps({"passed": self.passed, **asdict(self)}, indent=1) + "\n"


@exit_on_user_error()
def main() -> None:
    """Run `scripts/chaos.py`. Exit with 0 if both runs match, 1 if not, and 2 for invalid arguments."""
    settings, overrides = own_settings(ChaosConfig, sys.argv[1:], "chaos", _USAGE, _PREFIX)
    # Invalid settings of the run are rejected before any process starts.
    compose_jobs(overrides)
    folder = Path(settings.out)
    result = chaos(
        overrides,
        settings.kills,
        settings.seed,
        folder,
        settings.ranks,
        settings.torchrun,
        settings.longest_life,
    )
    (folder / RESULT).write_text(result.as_json())
    for name, value in result.unbroken.items():
        equal = "equal" if result.broken.get(name) == value else "DIFFERENT"
        print(f"{name:8} {equal:9} {value[:16]}")
    kills, judged = count_text(len(result.kills), "kill"), "PASSED" if result.passed else "FAILED"
    print(f"{kills}: {judged}, {folder / RESULT}")
    if not result.passed:
        raise SystemExit(1)


def chaos(
    overrides: Sequence[str],
    kills: int,
    seed: int,
    folder: Path,
    ranks: int = 1,
    torchrun: bool = False,
    longest_life: float = 10.0,
) -> ChaosResult:
    """Run once without kills and once with `kills` kills and resumes, and compare the results.

    `seed` determines signals and times: SIGKILL, SIGTERM, SIGINT or SIGUSR1 at any moment, or SIGKILL during
    a write (a checkpoint, the deletion of an old one, a replay file, or the log).

    Args:
        overrides: Overrides for the run, as typed.
        kills: Maximum number of kills. Fewer occur if the run ends earlier.
        seed: Seed of the kill times.
        folder: Folder of both runs, `unbroken` and `broken`.
        ranks: Number of processes that share each run.
        torchrun: Whether torchrun starts the ranks. The only signal is then SIGKILL.
        longest_life: Maximum lifetime of a process in seconds, unless the kill waits for a write.

    Raises:
        RuntimeError: If a process ended without being killed, or outlived torchrun.
    """
    result = ChaosResult(list(overrides), seed, ranks, torchrun)
    moments = random.Random(seed)
    unbroken, broken = folder / "unbroken", folder / "broken"
    start = _start_torchrun if torchrun else _start
    one_life = _one_life_of_torchrun if torchrun else _one_life
    _finish(start([*overrides, f"run_dir={unbroken}"], unbroken, ranks))
    result.unbroken = fingerprint(unbroken)
    while len(result.kills) < kills:
        killed = one_life(overrides, broken, moments, ranks, longest_life)
        if killed is None:
            break
        result.kills.append(killed)
        # Write the result after each kill, so that it survives if the chaos run itself is killed.
        (folder / RESULT).write_text(result.as_json())
    _finish(start(_next_life(overrides, broken), broken, ranks))
    result.broken = fingerprint(broken)
    return result


def _next_life(overrides: Sequence[str], run_dir: Path) -> list[str]:
    """Return the arguments a user would type to resume the run, or to start it if it has no configuration."""
    if (run_dir / CONFIG_FILE).exists():
        return [f"resume={run_dir}"]
    return [*overrides, f"run_dir={run_dir}"]


def _one_life(
    overrides: Sequence[str], run_dir: Path, moments: random.Random, ranks: int, longest: float
) -> Kill | None:
    """Start or resume the run and kill it. Return `None` if the run ended before the kill."""
    phase = moments.choice(["any moment", *_PHASES])
    number = signal.SIGKILL if phase in _PHASES else moments.choice(_SIGNALS)
    delay = moments.uniform(0, longest)
    started, printed = time.monotonic(), _printed(run_dir)
    processes = _start(_next_life(overrides, run_dir), run_dir, ranks)
    process = moments.choice(processes) if ranks > 1 else processes[0]
    _wait_for(phase, delay, run_dir, process)
    # While the run imports libraries, Python's default handlers still receive the other signals.
    if number != signal.SIGKILL:
        _wait(process, lambda: _printed(run_dir) > printed)
    if process.poll() is None:
        process.send_signal(number)
    # SIGUSR1 does not end the process, so kill the process shortly afterwards.
    if number == signal.SIGUSR1:
        _wait(process, lambda: time.monotonic() - started > 1.5 * delay)
        process.kill()
    code = process.wait(_PATIENCE_SECONDS)
    others = {_ended(each) for each in processes if each is not process}
    if code == 0:
        return None
    if not {code, *others} <= {-number, -signal.SIGKILL, RESUME_ME_EXIT_CODE, RANK_EXIT_CODE}:
        raise RuntimeError(f"exit codes {code}, {others} after {number.name}, see {_log_of(run_dir)}")
    return Kill(phase, number.name, code, round(time.monotonic() - started, 2))


def _one_life_of_torchrun(
    overrides: Sequence[str], run_dir: Path, moments: random.Random, ranks: int, longest: float
) -> Kill | None:
    """Start or resume the run, kill torchrun or one of its ranks, and wait until all processes have ended."""
    phase, delay = moments.choice(["any moment", *_PHASES]), moments.uniform(0, longest)
    target, index = moments.choice(["torchrun", "rank"]), moments.randrange(ranks)
    started = time.monotonic()
    [torchrun] = _start_torchrun(_next_life(overrides, run_dir), run_dir, ranks)
    _wait_for(phase, delay, run_dir, torchrun)
    started_ranks = psutil.Process(torchrun.pid).children()
    if target == "rank" and len(started_ranks) == ranks:
        started_ranks[index].kill()
    else:
        # torchrun has not started all ranks yet.
        target = "torchrun"
        torchrun.kill()
    killed = time.monotonic()
    patience = _ORPHAN_SECONDS if target == "torchrun" else _TORCHRUN_SECONDS
    while (left := _marked(run_dir)) and time.monotonic() < killed + patience:
        time.sleep(0.1)
        torchrun.poll()
    if left:
        raise RuntimeError(f"{patience:g} s after the kill of {target}, these processes are alive: {left}")
    seconds_to_end = round(time.monotonic() - killed, 2)
    if (code := torchrun.wait()) == 0:
        return None
    if code not in (-signal.SIGKILL, 1):
        raise RuntimeError(f"torchrun ended with exit code {code}, see {_log_of(run_dir)}")
    return Kill(phase, "SIGKILL", code, round(killed - started, 2), target, seconds_to_end)


def _marked(run_dir: Path) -> list[str]:
    """Return the live processes of a run under torchrun, including torchrun itself."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == str(run_dir) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {shlex.join(process.cmdline())}")
    return found


def _wait_for(phase: str, delay: float, run_dir: Path, process: "subprocess.Popen[bytes]") -> None:
    """Wait for a write, for `delay` seconds, or until the process ends."""
    started = time.monotonic()
    if phase in _PHASES:
        before = _PHASES[phase](run_dir)
        _wait(process, lambda: not _PHASES[phase](run_dir) <= before)
    else:
        _wait(process, lambda: time.monotonic() - started > delay)


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """Return the exit code of a rank whose peer was killed. Kill the rank if it does not exit itself."""
    try:
        return process.wait(_LOST_SECONDS)
    except subprocess.TimeoutExpired:
        # torchrun also kills such ranks.
        process.kill()
        return process.wait()


def _unfinished(run_dir: Path) -> set[str]:
    """Return the checkpoints that are currently being written or deleted."""
    return {path.name for path in (run_dir / CHECKPOINTS).glob(f"*{UNFINISHED}")}


def _checkpoints(run_dir: Path) -> set[str]:
    """Return the complete checkpoints. After a new checkpoint is written, an old one is deleted."""
    return {path.name for path in (run_dir / CHECKPOINTS).glob("step_*[0-9]")}


def _replay_files(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / CHECKPOINTS / "replay").glob("*")}


def _log_lines(run_dir: Path) -> set[str]:
    """Return the size of the log. Each new line changes this size."""
    path = run_dir / METRICS_FILE
    return {str(path.stat().st_size)} if path.exists() else set()


_PHASES: dict[str, Callable[[Path], set[str]]] = {
    "a checkpoint is being written": _unfinished,
    "a checkpoint has got its name": _checkpoints,
    "a replay file is being written": _replay_files,
    "a log line is being written": _log_lines,
}
"""The function that observes each kind of write on disk."""


def _start(arguments: Sequence[str], run_dir: Path, ranks: int) -> "list[subprocess.Popen[bytes]]":
    """Start the processes of a run. Several ranks start as under torchrun, but without its supervision."""
    environments = [dict(os.environ)]
    if ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        own = ({**shared, "RANK": index, "LOCAL_RANK": index} for index in range(ranks))
        environments = [os.environ | {name: str(value) for name, value in each.items()} for each in own]
    with _log_of(run_dir).open("ab") as log:
        return [
            subprocess.Popen(
                [*_TRAIN, *arguments], stdout=log, stderr=log, preexec_fn=_heed_ctrl_c, env=environment
            )
            for environment in environments
        ]


def _start_torchrun(arguments: Sequence[str], run_dir: Path, ranks: int) -> "list[subprocess.Popen[bytes]]":
    """Start a run as a user would. Its processes have the run's folder in their environment."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    command = [*torchrun, f"--nproc-per-node={ranks}", *_TRAIN, *arguments]
    with _log_of(run_dir).open("ab") as log:
        environment = os.environ | {_MARK: str(run_dir)}
        return [subprocess.Popen(command, stdout=log, stderr=log, env=environment)]


def _heed_ctrl_c() -> None:
    """Restore SIGINT handling. A shell ignores SIGINT in background jobs, and the run would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _log_of(run_dir: Path) -> Path:
    """Return the file next to the run that captures the output of its processes."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    return run_dir.with_name(f"{run_dir.name}.log")


def _printed(run_dir: Path) -> int:
    """Return the size of the processes' output. A run handles signals once it has printed its first line."""
    log = _log_of(run_dir)
    return log.stat().st_size if log.exists() else 0


def _wait(process: "subprocess.Popen[bytes]", has_come: Callable[[], bool]) -> None:
    """Wait until `has_come` returns true or the process ends."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while process.poll() is None and not has_come() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


def _finish(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Wait for the end of a run that is not killed.

    Raises:
        RuntimeError: If its exit code is not 0.
    """
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError(f"{processes[0].args} ended with exit codes {codes}")
