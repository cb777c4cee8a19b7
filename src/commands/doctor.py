"""Check whether this machine can train, and print a fix for each problem without applying it.

Exit code: 1 if a check failed, otherwise 0. This command has no settings.
"""

import importlib.metadata
import os
import platform
import shlex
import shutil
import socket
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from heapwatch.counters.limits import memory_available_bytes, memory_limit_bytes
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch.utils import collect_env

from ..utils.cpus import usable_cpus
from ..utils.errors import FlagParser, exit_on_user_error
from ..utils.units import count_text, size_text

GIB = 2**30

# A check fails below the first number of free bytes, and warns below the second. The Pong run stores 1.2 GB
# of replay in each checkpoint that it keeps, and uses about 3 GB of process memory. A 6 GB GPU that also runs
# a desktop and CUDA's context has 4.5 GiB free.
_DISK, _MEMORY = (1 * GIB, 10 * GIB), (2 * GIB, 4 * GIB)
_SHARED_MEMORY, _GPU = (0, 256 * 2**20), (0, 4608 * 2**20)

_SECONDS_TO_EXCHANGE = 5.0


class Health(Enum):
    """Result of a check and its color. WARN: runs work, with limitations. FAIL: runs would fail."""

    OK = "green"
    WARN = "yellow"
    FAIL = "red"


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the report."""

    subject: str
    health: Health
    found: str
    fix: str = ""
    """Advice, unless the check is OK."""

    @classmethod
    def of(cls, subject: str, found: str, fix: str, *, fails: bool = False, warns: bool = True) -> "Check":
        """Return a check that fails, warns, or is OK without a fix."""
        health = Health.FAIL if fails else Health.WARN if warns else Health.OK
        return cls(subject, health, found, "" if health is Health.OK else fix)

    @classmethod
    def of_bytes(cls, subject: str, found: str, fix: str, free: int, limits: tuple[int, int]) -> "Check":
        """Return a check that fails below the first limit of free bytes and warns below the second."""
        return cls.of(subject, found, fix, fails=free < limits[0], warns=free < limits[1])


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `reverie-doctor` and return 1 if a check failed, otherwise 0. The only argument is --help."""
    FlagParser(description=__doc__, allow_abbrev=False).parse_args(arguments)
    return report(diagnose(), Console(highlight=False))


def diagnose() -> list[Check]:
    """Run all checks in the order of the report."""
    here, shared = Path.cwd(), Path("/dev/shm")
    limit = memory_limit_bytes()
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    pytorch = f"{torch.__version__} ({build} build), {count_text(torch.get_num_threads(), 'thread')}"
    return [
        judge_system(sys.platform),
        judge_python(sys.version_info[:2]),
        judge_packages(importlib.metadata.requires("reverie") or []),
        # The package check covers PyTorch's minimum version.
        Check("PyTorch", Health.OK, pytorch),
        _check_gpu(),
        _check_start("Atari", "ale-py", "atari", "--force-reinstall", "--no-deps", "ale-py"),
        _check_start("Gymnasium", "gymnasium", "gymnasium", "gymnasium[classic-control]"),
        judge_disk(here, shutil.disk_usage(here).free, os.access(here, os.W_OK)),
        judge_shared_memory(shutil.disk_usage(shared).free if shared.is_dir() else None),
        judge_memory(memory_available_bytes(), limit if limit < psutil.virtual_memory().total else None),
        judge_load(os.getloadavg()[0], usable_cpus()),
        judge_ranks(why_no_exchange(), gloo_address()),
    ]


def report(checks: list[Check], console: Console) -> int:
    """Print the table, then each fix on its own line for copying, and return the exit code."""
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
    """Check the operating system, given its name in `sys.platform`. On Windows, commands exit earlier."""
    if name == "linux":
        return Check("system", Health.OK, platform.platform())
    tried = "macOS was tested only in a simulation" if name == "darwin" else f"{name} was never tested"
    found = (
        f"{tried}: without /proc and glibc, memory is judged by resident size, which includes memory cached "
        "by the allocator, and workers outlive a killed run by a few seconds, or more with engine=ray"
    )
    return Check.of("system", found, "Use Linux for long runs. Short ones may work here")


def judge_python(version: tuple[int, int]) -> Check:
    """Check Python's (major, minor) version."""
    found = f"{version[0]}.{version[1]} at {sys.executable} (tested: 3.11 and 3.12)"
    fix = "Create the environment with Python 3.11 or 3.12: python3.11 -m venv .venv"
    return Check.of("Python", found, fix, fails=version < (3, 11), warns=version > (3, 12))


def judge_packages(requirements: Iterable[str]) -> Check:
    """Check the installed packages against requirements such as `torch>=2.11`, ignoring extras."""
    wrong: dict[str, str] = {}
    for each in map(Requirement, requirements):
        if each.marker and not each.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(each.name)
            is_right = each.specifier.contains(version, prereleases=True)
        except importlib.metadata.PackageNotFoundError:
            version, is_right = "not installed", False
        if not is_right:
            wrong[str(each)] = f"{each.name} {version}, requires {each.specifier or 'any version'}"
    found = "; ".join(wrong.values()) or "all within the ranges of pyproject.toml"
    return Check.of("packages", found, _pip_install(*wrong), fails=bool(wrong), warns=False)


def _pip_install(*what: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", *what])


def judge_missing_gpu(cuda_build: str | None, driver: str | None, reason: str) -> Check:
    """Explain why PyTorch, built for a CUDA version or for CPU only, does not find a CUDA device."""
    if driver is None:
        found = "no NVIDIA driver: runs use the small CPU preset"
        fix = "Optional: Catch, CartPole and Pong train on a CPU. With an NVIDIA GPU, install its driver"
    elif cuda_build is None:
        found = f"driver {driver}, but PyTorch is a CPU build and does not use the GPU"
        # With PIP_EXTRA_INDEX_URL of docs/install.md, pip would choose the CPU build again.
        fix = _pip_install("--isolated", "--force-reinstall", f"torch=={torch.__version__.partition('+')[0]}")
    else:
        found = f"driver {driver}, PyTorch built for CUDA {cuda_build}, but no device. {reason}".strip()
        fix = "Unset CUDA_VISIBLE_DEVICES, update the driver, or install a PyTorch built for an older CUDA"
    return Check.of("GPU", found, fix)


def _check_gpu() -> Check:
    """Check the GPU with a small computation."""
    # PyTorch warns here if the driver is too old.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        is_available = torch.cuda.is_available()
    query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
    drivers = collect_env.run_and_read_all(collect_env.run, query)
    driver = drivers.split()[0] if drivers else None
    if not is_available:
        return judge_missing_gpu(torch.version.cuda, driver, " ".join(str(each.message) for each in caught))
    versions = f"driver {driver or 'unknown'}, CUDA {torch.version.cuda}"
    try:
        torch.ones(8, device="cuda").sum().item()
        free, total = torch.cuda.mem_get_info()
    except RuntimeError as error:
        # PyTorch lacks kernels for this GPU, or the GPU's memory is full.
        fix = "Free the GPU (see nvidia-smi), install a PyTorch built for it, or use device=cpu"
        return Check.of("GPU", f"{versions}: {_one_line(error)}", fix, fails=True)
    bfloat16 = "with" if torch.cuda.is_bf16_supported(including_emulation=False) else "without"
    name, memory = torch.cuda.get_device_name(), f"{size_text(free)} free of {size_text(total)}"
    fix = "Close other programs on the GPU (nvidia-smi lists them), or use a smaller model: model=size1m"
    return Check.of_bytes("GPU", f"{name}, {versions}, {bfloat16} bfloat16, {memory}", fix, free, _GPU)


def _check_start(subject: str, package: str, suite: str, *install: str) -> Check:
    """Check that a suite's default environment starts."""
    try:
        # The report also covers errors raised by this import.
        from ..envs import EnvConfig, Suite, make_single

        env = make_single(EnvConfig(suite=Suite[suite]))
        image = env.reset(seed=0)[0]
        env.close()
        if image.max() == image.min():
            raise RuntimeError("its first observation is blank")
        return Check(subject, Health.OK, f"{package} {importlib.metadata.version(package)} starts")
    except Exception as error:
        return Check.of(
            subject, f"{package} does not start: {_one_line(error)}", _pip_install(*install), fails=True
        )


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def judge_disk(folder: Path, free: int, is_writable: bool) -> Check:
    """Check the folder in which runs are saved, with `free` bytes left on its disk."""
    elsewhere = "run_dir=<folder on another disk>"
    if not is_writable:
        return Check.of(
            "disk", f"{folder} is not writable", f"Use another folder, or set {elsewhere}", fails=True
        )
    fix = f"Free {size_text(_DISK[1])}, or set {elsewhere}"
    return Check.of_bytes("disk", f"{size_text(free)} free in {folder}", fix, free, _DISK)


def judge_shared_memory(free: int | None) -> Check:
    """Check the free bytes of /dev/shm (`None` if missing), through which workers send observations."""
    found = "no /dev/shm" if free is None else f"{size_text(free)} free in /dev/shm"
    fix = "In Docker, use docker run --shm-size=1g. Elsewhere, set env.vectorization=sync"
    return Check.of_bytes("shared memory", found, fix, free or 0, _SHARED_MEMORY)


def judge_memory(available: int, cgroup_limit: int | None) -> Check:
    """Check the available memory in bytes and the control group's limit, if any."""
    limit = "no cgroup limit" if cgroup_limit is None else f"cgroup limit {size_text(cgroup_limit)}"
    fix = "Close other programs, or lower buffer.capacity to 20000"
    if cgroup_limit is not None and cgroup_limit < _MEMORY[1]:
        fix = "Raise the container's limit: docker run --memory=8g"
    return Check.of_bytes("memory", f"{size_text(available)} available, {limit}", fix, available, _MEMORY)


def judge_load(load: float, cpus: int) -> Check:
    """Compare the load average of the last minute with the number of CPUs available to this process.

    A single-threaded run competes with `load` other busy threads.
    """
    slowdown = (load + 1) / cpus
    effect = f"runs are up to {slowdown:.1f} times slower than documented"
    if slowdown <= 1:
        effect = "one CPU is free for a single-threaded run"
    fix = "Stop other programs, or set threads=1" if cpus > 1 else "Stop other programs"
    found = f"load average {load:.1f} on {count_text(cpus, 'usable CPU')}: {effect}"
    return Check.of("load", found, fix, warns=slowdown > 1)


def why_no_exchange() -> str:
    """Sum a number with gloo over two ranks in threads of this process. Return an error or ""."""
    store = dist.HashStore()

    def total(rank: int) -> float:
        group: Any = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=_SECONDS_TO_EXCHANGE))
        number = torch.ones(1)
        group.allreduce([number]).wait()
        return number.item()

    try:
        with ThreadPool(2) as ranks:
            totals = ranks.map_async(total, range(2)).get(2 * _SECONDS_TO_EXCHANGE)
    except Exception as error:
        # Errors of any type belong in the report.
        return _one_line(error)
    return "" if totals == [2, 2] else f"the sum of 1 and 1 was {totals}"


def gloo_address() -> str | None:
    """Return gloo's interface, otherwise the address of this machine's name, or `None`."""
    if name := os.environ.get("GLOO_SOCKET_IFNAME"):
        return name
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None


def judge_ranks(failure: str, address: str | None) -> Check:
    """Check the communication between the processes of `torchrun`, given its `failure` and address."""
    up = [name for name, state in psutil.net_if_stats().items() if state.isup and not name.startswith("lo")]
    others = f"GLOO_SOCKET_IFNAME={up[0] if up else '<interface>'}"
    fix = f"For torchrun, set GLOO_SOCKET_IFNAME=lo on a single machine, or {others} for several"
    if failure:
        return Check.of("ranks", f"two ranks cannot communicate with gloo: {failure}", fix)
    if address is None:
        return Check.of("ranks", "this machine's name does not resolve to an address for gloo", fix)
    gpus = torch.cuda.device_count()
    if gpus and not dist.is_nccl_available():
        fix = "Install a PyTorch with NCCL, or use device=cpu"
        return Check.of("ranks", "PyTorch has no NCCL for communication between GPUs", fix)
    reach = f"; other machines need {others}" if address.startswith("127.") else ""
    limit = f"one rank per {'GPU' if gpus else 'core'}"
    return Check("ranks", Health.OK, f"gloo works over {address}, for up to {limit}{reach}")
