"""Kill a training run again and again, resume it each time, and compare it with the unbroken run.

`python scripts/chaos.py`; `reverie.testing.fingerprint` says what is compared.
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
from reverie.utils.logging.writer import METRICS_FILE
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
Kill a run at random moments, resume it each time, and compare it with the unbroken run.

  python scripts/chaos.py experiment=dreamer_catch device=cpu chaos.kills=20 chaos.out=<folder>

chaos.torchrun=true kills torchrun, or one of its ranks, and requires that no process is left 10 s later.

"""


@dataclass(kw_only=True, slots=True)
class ChaosConfig:
    """Settings of `scripts/chaos.py`, typed as `chaos.<name>=<value>`."""

    kills: int = 20
    """How often the run is killed."""

    seed: int = 0
    """Seed of the moments and the signals."""

    ranks: int = 1
    """How many processes share the run; one of them, drawn anew each time, is killed."""

    torchrun: bool = False
    """Start the ranks by `torchrun`, and kill torchrun or one of its ranks."""

    longest_life: float = 10.0
    """Seconds after which a process is killed at the latest, unless a write is waited for."""

    out: str = "chaos"
    """Folder for both runs and for chaos.json; it must not exist yet."""

    def __post_init__(self) -> None:
        require_range("chaos", self, "kills", "ranks", ge=1)
        require_range("chaos", self, "longest_life", gt=0)
        if Path(self.out).exists():
            raise UserError(f"chaos.out={self.out} exists already; choose another folder.")


@dataclass(frozen=True, slots=True)
class Kill:
    """One end of one process."""

    phase: str
    """What was waited for: `any moment`, or a write."""

    signal: str
    exit_code: int
    seconds: float
    """Life of the process."""

    target: str = "run"
    """What was killed: the `run`, `torchrun`, or a `rank` of torchrun."""

    seconds_to_end: float | None = None
    """Seconds until no process was left; only measured under torchrun."""


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
        """Whether both runs are equal in every hash."""
        return bool(self.unbroken) and self.unbroken == self.broken

    def as_json(self) -> str:
        """Return all of it."""
        return json.dumps({"passed": self.passed, **asdict(self)}, indent=1) + "\n"


@exit_on_user_error()
def main() -> None:
    """Run `scripts/chaos.py`; exit code 0 if both runs are equal, 1 if not, 2 for a mistake."""
    settings, overrides = own_settings(ChaosConfig, sys.argv[1:], "chaos", _USAGE, _PREFIX)
    compose_jobs(overrides)  # a mistake in the run's own settings is refused before anything starts
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
    """Run once unbroken and once with `kills` kills, each followed by a resume, and compare the ends.

    Signals and moments are drawn from `seed`: SIGKILL, SIGTERM, SIGINT or SIGUSR1 at any moment, or SIGKILL
    in the middle of a write: a checkpoint, the deletion of an old one, a replay file, the log.

    Args:
        overrides: Of the run, as typed.
        kills: How often it is killed; fewer if it comes to its end before.
        seed: Of the moments.
        folder: Where both runs are made, `unbroken` and `broken`.
        ranks: How many processes share each of them.
        torchrun: Whether torchrun starts them. Then SIGKILL is the only signal.
        longest_life: Seconds after which a process is killed at the latest, unless a write is waited for.

    Raises:
        RuntimeError: If a process ended in a way that no signal explains, or outlived torchrun.
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
        (folder / RESULT).write_text(result.as_json())  # A chaos that is killed itself leaves its kills.
    _finish(start(_next_life(overrides, broken), broken, ranks))
    result.broken = fingerprint(broken)
    return result


def _next_life(overrides: Sequence[str], run_dir: Path) -> list[str]:
    """Return how to continue: once there is a configuration, by resuming, as a user would."""
    if (run_dir / CONFIG_FILE).exists():
        return [f"resume={run_dir}"]
    return [*overrides, f"run_dir={run_dir}"]


def _one_life(
    overrides: Sequence[str], run_dir: Path, moments: random.Random, ranks: int, longest: float
) -> Kill | None:
    """Start or resume the run and kill it; None if it came to its end before."""
    phase = moments.choice(["any moment", *_PHASES])
    number = signal.SIGKILL if phase in _PHASES else moments.choice(_SIGNALS)
    delay = moments.uniform(0, longest)
    started, printed = time.monotonic(), _printed(run_dir)
    processes = _start(_next_life(overrides, run_dir), run_dir, ranks)
    process = moments.choice(processes) if ranks > 1 else processes[0]
    _wait_for(phase, delay, run_dir, process)
    if number != signal.SIGKILL:  # while libraries are imported, other signals are Python's own affair
        _wait(process, lambda: _printed(run_dir) > printed)
    if process.poll() is None:
        process.send_signal(number)
    if number == signal.SIGUSR1:  # the run continues: it is killed a moment later
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
    """Start or resume the run, kill torchrun or one of its ranks, and wait until no process is left."""
    phase, delay = moments.choice(["any moment", *_PHASES]), moments.uniform(0, longest)
    target, index = moments.choice(["torchrun", "rank"]), moments.randrange(ranks)
    started = time.monotonic()
    [torchrun] = _start_torchrun(_next_life(overrides, run_dir), run_dir, ranks)
    _wait_for(phase, delay, run_dir, torchrun)
    started_ranks = psutil.Process(torchrun.pid).children()
    if target == "rank" and len(started_ranks) == ranks:
        started_ranks[index].kill()
    else:  # torchrun has not started all ranks yet
        target = "torchrun"
        torchrun.kill()
    killed = time.monotonic()
    patience = _ORPHAN_SECONDS if target == "torchrun" else _TORCHRUN_SECONDS
    while (left := _marked(run_dir)) and time.monotonic() < killed + patience:
        time.sleep(0.1)
        torchrun.poll()
    if left:
        raise RuntimeError(f"{patience:g} s after {target} was killed these processes are left: {left}")
    seconds_to_end = round(time.monotonic() - killed, 2)
    if (code := torchrun.wait()) == 0:
        return None
    if code not in (-signal.SIGKILL, 1):
        raise RuntimeError(f"torchrun ended with exit code {code}, see {_log_of(run_dir)}")
    return Kill(phase, "SIGKILL", code, round(killed - started, 2), target, seconds_to_end)


def _marked(run_dir: Path) -> list[str]:
    """Return the living processes that torchrun has started for a run, directly or not, and torchrun."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == str(run_dir) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {shlex.join(process.cmdline())}")
    return found


def _wait_for(phase: str, delay: float, run_dir: Path, process: "subprocess.Popen[bytes]") -> None:
    """Wait for a write, or `delay` seconds, or the end of the process."""
    started = time.monotonic()
    if phase in _PHASES:
        before = _PHASES[phase](run_dir)
        _wait(process, lambda: not _PHASES[phase](run_dir) <= before)
    else:
        _wait(process, lambda: time.monotonic() - started > delay)


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """Return the exit code of a rank that has lost another one, and is killed if it does not end for it."""
    try:
        return process.wait(_LOST_SECONDS)
    except subprocess.TimeoutExpired:  # torchrun does so too
        process.kill()
        return process.wait()


def _unfinished(run_dir: Path) -> set[str]:
    """Return the checkpoints that are being written or deleted."""
    return {path.name for path in (run_dir / CHECKPOINTS).glob(f"*{UNFINISHED}")}


def _checkpoints(run_dir: Path) -> set[str]:
    """Return the whole checkpoints; a new one is followed by the deletion of an old one."""
    return {path.name for path in (run_dir / CHECKPOINTS).glob("step_*[0-9]")}


def _replay_files(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / CHECKPOINTS / "replay").glob("*")}


def _log_lines(run_dir: Path) -> set[str]:
    """Return the size of the log, which is another one after each line."""
    path = run_dir / METRICS_FILE
    return {str(path.stat().st_size)} if path.exists() else set()


_PHASES: dict[str, Callable[[Path], set[str]]] = {
    "a checkpoint is being written": _unfinished,
    "a checkpoint has got its name": _checkpoints,
    "a replay file is being written": _replay_files,
    "a log line is being written": _log_lines,
}
"""What changes on disk with each kind of write."""


def _start(arguments: Sequence[str], run_dir: Path, ranks: int) -> "list[subprocess.Popen[bytes]]":
    """Start the processes of a run; several as torchrun does, which itself would end those that are left."""
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
    """Start a run as a user does; its processes have the run's folder in their environment."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    command = [*torchrun, f"--nproc-per-node={ranks}", *_TRAIN, *arguments]
    with _log_of(run_dir).open("ab") as log:
        environment = os.environ | {_MARK: str(run_dir)}
        return [subprocess.Popen(command, stdout=log, stderr=log, env=environment)]


def _heed_ctrl_c() -> None:
    """Undo what a shell does to jobs in its background, which would pass on to the run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _log_of(run_dir: Path) -> Path:
    """Return the file next to the run that holds what its processes printed."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    return run_dir.with_name(f"{run_dir.name}.log")


def _printed(run_dir: Path) -> int:
    """Return how much the run's processes have printed; the first line comes when a run heeds signals."""
    log = _log_of(run_dir)
    return log.stat().st_size if log.exists() else 0


def _wait(process: "subprocess.Popen[bytes]", has_come: Callable[[], bool]) -> None:
    """Wait for a moment, or for the end of the process."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while process.poll() is None and not has_come() and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


def _finish(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Wait for the end of a run that nobody kills.

    Raises:
        RuntimeError: If it does not end well.
    """
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError(f"{processes[0].args} ended with exit codes {codes}")
