"""`reverie-doctor`: can this machine train, and what to do where it cannot. It changes nothing."""

import importlib.metadata
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import torch
import torch.distributed as dist
from heapwatch.counters.cpus import usable_cpus
from heapwatch.counters.limits import memory_available_bytes, memory_limit_bytes
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..utils.errors import FlagParser, exit_on_user_error
from ..utils.units import count_text, size_text

GIB = 2**30

# Free bytes below which a check fails, and warns. The Pong run: 1.2 GB of replay, saved with each checkpoint
# that is kept, and about 3 GB of process; a 6 GB card has 4.5 GiB free next to a desktop and CUDA's context.
_DISK, _MEMORY = (1 * GIB, 10 * GIB), (2 * GIB, 4 * GIB)
_SHARED_MEMORY, _GPU = (0, 256 * 2**20), (0, 4608 * 2**20)

_SECONDS_TO_EXCHANGE = 5.0


class Health(Enum):
    """OK; WARN: runs work, but less well than they could; FAIL: a run would fail. Values are colours."""

    OK = "green"
    WARN = "yellow"
    FAIL = "red"


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the report."""

    subject: str
    health: Health
    found: str
    fix: str = ""
    """What to do unless all is well."""


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `reverie-doctor`; return 1 if a check failed, else 0. Anything but --help is refused."""
    parser = FlagParser(
        description="Check whether this machine can train, and say what to do where it cannot.",
        epilog="Exit code: 1 if a check failed, else 0. Nothing is changed, and there are no settings.",
        allow_abbrev=False,
    )
    parser.parse_args(arguments)
    return report(diagnose(), Console(highlight=False))


def diagnose() -> list[Check]:
    """Make every check, in the order of the report."""
    here, shared = Path.cwd(), Path("/dev/shm")
    limit = memory_limit_bytes()
    is_limited = limit < psutil.virtual_memory().total
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    found = f"{torch.__version__} ({build} build), {count_text(torch.get_num_threads(), 'thread')}"
    return [
        judge_system(sys.platform),
        judge_python(sys.version_info[:2]),
        _check_packages(),
        Check("PyTorch", Health.OK, found),  # whether it is new enough is a matter of the packages
        _check_gpu(),
        _check_start("Atari", "Pong", _start_pong, "--force-reinstall", "--no-deps", "ale-py"),
        _check_start("Gymnasium", "CartPole", _start_cartpole, "gymnasium[classic-control]"),
        judge_disk(here, shutil.disk_usage(here).free, os.access(here, os.W_OK)),
        judge_shared_memory(shutil.disk_usage(shared).free if shared.is_dir() else None),
        judge_memory(memory_available_bytes(), limit if is_limited else None),
        judge_load(os.getloadavg()[0], usable_cpus()),
        judge_ranks(why_no_exchange(), gloo_address()),
    ]


def report(checks: list[Check], console: Console) -> int:
    """Print the table, then each fix in a line by itself so that it can be pasted; return the exit code."""
    table = Table("check", "health", "found")
    for check in checks:
        table.add_row(check.subject, Text(check.health.name, check.health.value), Text(check.found))
    console.print(table)
    for check in checks:
        if check.health is not Health.OK:
            health = (check.health.name, check.health.value)
            console.print(Text.assemble(health, f" {check.subject}: {check.fix}"), soft_wrap=True)
    return int(any(check.health is Health.FAIL for check in checks))


def judge_system(name: str) -> Check:
    """Judge the operating system, named as `sys.platform` names it; on Windows not even this runs."""
    if name == "linux":
        return Check("system", Health.OK, platform.platform())
    tried = "macOS was only simulated, on Linux" if name == "darwin" else f"{name} was never tried"
    missing = (
        f"{tried}: without /proc and glibc memory is judged by resident size, which what the allocator keeps "
        "hides, and a killed run may leave workers for some seconds, with engine=ray for longer"
    )
    return Check("system", Health.WARN, missing, "Long runs belong on Linux; short ones may work here")


def judge_python(version: tuple[int, int]) -> Check:
    """Judge the (major, minor) version of Python."""
    found = f"{version[0]}.{version[1]} at {sys.executable}"
    fix = "Make the environment with Python 3.11 or 3.12: python3.11 -m venv .venv"
    if version > (3, 12):
        return Check("Python", Health.WARN, f"{found}; tested with 3.11 and 3.12", fix)
    return Check("Python", Health.FAIL if version < (3, 11) else Health.OK, found, fix)


def judge_packages(requirements: Iterable[str]) -> Check:
    """Judge whether packages are in the ranges of requirements (`torch>=2.11`), those of extras left out."""
    count, wrong, repairs = 0, [], []
    for requirement in map(Requirement, requirements):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        count += 1
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        if version == "not installed" or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version}, needs {requirement.specifier or 'any version'}")
            repairs.append(str(requirement))
    if wrong:
        return Check("packages", Health.FAIL, "; ".join(wrong), _pip_install(*repairs))
    return Check("packages", Health.OK, f"all {count} in the ranges of pyproject.toml")


def _check_packages() -> Check:
    """Hold the installed packages against what Reverie's own metadata ask for."""
    try:
        return judge_packages(importlib.metadata.requires("reverie") or [])
    except importlib.metadata.PackageNotFoundError:  # imported from a folder, not installed
        fix = _pip_install("-c", "constraints.txt", "-e", ".")
        return Check("packages", Health.WARN, "Reverie is not installed, only importable", fix)


def _pip_install(*what: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", *what])


def _nvidia_driver_version() -> str | None:
    """Return the version of the NVIDIA driver, or None where there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def judge_missing_gpu(cuda_build: str | None, driver: str | None, reason: str) -> Check:
    """Judge a machine on which PyTorch, built for a CUDA version or a CPU, sees no device for a `reason`."""
    if driver is None:
        found = "no NVIDIA driver: runs take the small CPU preset"
        fix = "None needed for Catch and CartPole; for Pong take a machine with an NVIDIA GPU and its driver"
    elif cuda_build is None:
        found = f"driver {driver}, but PyTorch is a CPU build: the GPU is not used"
        fix = _pip_install("--force-reinstall", f"torch=={torch.__version__.partition('+')[0]}")
    else:
        found = f"driver {driver}, PyTorch built for CUDA {cuda_build}, but no device. {reason}".strip()
        fix = f"Unset CUDA_VISIBLE_DEVICES, update the driver, or take PyTorch for a CUDA before {cuda_build}"
    return Check("GPU", Health.WARN, found, fix)


def _check_gpu() -> Check:
    """Use the GPU for a moment, if there is one."""
    with warnings.catch_warnings(record=True) as said:  # PyTorch says here that a driver is too old
        warnings.simplefilter("always")
        is_available = torch.cuda.is_available()
    driver = _nvidia_driver_version()
    if not is_available:
        return judge_missing_gpu(torch.version.cuda, driver, " ".join(str(item.message) for item in said))
    versions = f"driver {driver or 'unknown'}, CUDA {torch.version.cuda}"
    try:
        torch.ones(8, device="cuda").sum().item()
        free, total = torch.cuda.mem_get_info()
    except RuntimeError as error:  # no kernels for this card, or its memory is full
        fix = "Free the GPU (nvidia-smi shows who uses it), install a PyTorch built for it, or use device=cpu"
        return Check("GPU", Health.FAIL, f"{versions}: {_one_line(error)}", fix)
    bfloat16 = "with" if torch.cuda.is_bf16_supported(including_emulation=False) else "without"
    name = torch.cuda.get_device_name()
    found = f"{name}, {versions}, {bfloat16} bfloat16, {size_text(free)} free of {size_text(total)}"
    fix = "Close what else uses the GPU (nvidia-smi shows it), or take a smaller model: model=size1m"
    return Check("GPU", _health(free, _GPU), found, fix)


def _check_start(subject: str, name: str, start: Callable[[], str], *packages: str) -> Check:
    """Start an environment; `start` returns the version of its suite."""
    try:
        return Check(subject, Health.OK, f"{start()}, {name} starts")
    except Exception as error:  # whatever it is, it belongs in the report
        found = f"{name} does not start: {_one_line(error)}"
        return Check(subject, Health.FAIL, found, _pip_install(*packages))


def _start_pong() -> str:
    """Start Pong in ale-py's vector environment, ROM included."""
    import ale_py
    from ale_py.vector_env import AtariVectorEnv

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env = AtariVectorEnv("pong", num_envs=1, grayscale=False, stack_num=1, img_height=64, img_width=64)
    image = env.reset(seed=0)[0]
    env.close()
    if image.max() == image.min():
        raise RuntimeError("its screen is one colour")
    return f"ale-py {ale_py.__version__}"


def _start_cartpole() -> str:
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    env.close()
    return gymnasium.__version__


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def judge_disk(folder: Path, free: int, is_writable: bool) -> Check:
    """Judge the folder in which runs would be written, with `free` bytes left on its disk."""
    elsewhere = "run_dir=<a folder on another disk>"
    if not is_writable:
        found = f"{folder} cannot be written to"
        return Check("disk", Health.FAIL, found, f"Start elsewhere, or {elsewhere}")
    fix = f"Free {size_text(_DISK[1])}, or {elsewhere}"
    return Check("disk", _health(free, _DISK), f"{size_text(free)} free in {folder}", fix)


def judge_shared_memory(free: int | None) -> Check:
    """Judge the free bytes of /dev/shm, if there is one: environments in workers send observations by it."""
    found = "no /dev/shm" if free is None else f"{size_text(free)} free in /dev/shm"
    fix = "In Docker: docker run --shm-size=1g ...; elsewhere env.vectorization=sync does without it"
    return Check("shared memory", _health(free or 0, _SHARED_MEMORY), found, fix)


def judge_memory(available: int, cgroup_limit: int | None) -> Check:
    """Judge the bytes of memory that can be taken now; a control group may limit what that can ever be."""
    limit = "no cgroup limit" if cgroup_limit is None else f"cgroup limit {size_text(cgroup_limit)}"
    fix = "Close other programs, or lower buffer.capacity to 20000"
    if cgroup_limit is not None and cgroup_limit < _MEMORY[1]:
        fix = "Raise the container's limit: docker run --memory=8g ..."
    return Check("memory", _health(available, _MEMORY), f"{size_text(available)} available, {limit}", fix)


def judge_load(load: float, cpus: int) -> Check:
    """Judge the load average of the last minute against the CPUs that this process may use.

    A run with one thread competes with `load` other busy threads.
    """
    slowdown = (load + 1) / cpus
    found = f"load average {load:.1f} on {count_text(cpus, 'usable CPU')}: "
    if slowdown <= 1:
        return Check("load", Health.OK, found + "a run with one thread gets a CPU of its own")
    fix = "End other programs. Otherwise threads=1 loses the least, and so does the choice made at startup"
    return Check(
        "load", Health.WARN, f"{found}runs take up to {slowdown:.1f} times as long as documented", fix
    )


def why_no_exchange() -> str:
    """Let two ranks, threads of this process, add up a number by gloo; return what is wrong, or ""."""
    store, found = dist.HashStore(), ["no answer"] * 2

    def be(rank: int) -> None:
        try:
            group: Any = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=_SECONDS_TO_EXCHANGE))
            number = torch.ones(1)
            group.allreduce([number]).wait()
            found[rank] = "" if number.item() == 2 else f"1 + 1 = {number.item():g}"
        except Exception as error:  # whatever it is, it belongs in the report
            found[rank] = _one_line(error)

    ranks = [Thread(target=be, args=(rank,), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(2 * _SECONDS_TO_EXCHANGE)
    return next(filter(None, found), "")


def gloo_address() -> str | None:
    """Return the interface, or the address of this machine's name, that gloo takes; None without either."""
    if name := os.environ.get("GLOO_SOCKET_IFNAME"):
        return name
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None


def judge_ranks(failure: str, address: str | None) -> Check:
    """Judge how the processes of `torchrun` would exchange: what is wrong with it, and by which address."""
    up = [name for name, state in psutil.net_if_stats().items() if state.isup and not name.startswith("lo")]
    others = f"GLOO_SOCKET_IFNAME={up[0] if up else '<interface>'}"
    fix = f"Only torchrun needs it: set GLOO_SOCKET_IFNAME=lo for ranks of this machine, {others} for several"
    if failure:
        return Check("ranks", Health.WARN, f"two ranks cannot exchange by gloo: {failure}", fix)
    if address is None:
        return Check("ranks", Health.WARN, "the name of this machine has no address, which gloo takes", fix)
    gpus = torch.cuda.device_count()
    if gpus and not dist.is_nccl_available():
        fix = "Take a PyTorch with NCCL, or device=cpu"
        return Check("ranks", Health.WARN, "PyTorch has no NCCL, by which GPUs exchange", fix)
    most = f"{gpus} (one for each GPU)" if gpus else f"{usable_cpus()} (one for each core)"
    reach = f"; those of other machines need {others}" if address.startswith("127.") else ""
    return Check("ranks", Health.OK, f"two exchange by gloo over {address}, up to {most} here{reach}")


def _health(free: int, limits: tuple[int, int]) -> Health:
    fail_below, warn_below = limits
    if free >= warn_below:
        return Health.OK
    return Health.FAIL if free < fail_below else Health.WARN
