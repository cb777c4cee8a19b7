"""`reverie-doctor`: can this machine train, and what to do where it cannot. It changes nothing."""

import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import psutil
import torch
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..memory.counters.limits import memory_available_bytes, memory_limit_bytes
from ..utils.errors import FlagParser, exit_on_user_error
from ..utils.system import lacks

GIB = 2**30

# The Pong run: 1.2 GB of replay, saved with each checkpoint that is kept, and about 3 GB of process.
DISK_FAIL_BYTES, DISK_WARN_BYTES = 1 * GIB, 10 * GIB
MEMORY_FAIL_BYTES, MEMORY_WARN_BYTES = 2 * GIB, 4 * GIB
SHARED_MEMORY_WARN_BYTES = 256 * 2**20
GPU_WARN_BYTES = 4608 * 2**20  # what a 6 GB card has free next to a desktop and the CUDA context


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
    """What to do, to be pasted where it is a command; empty if all is well."""


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
    return [
        judge_system(sys.platform),
        judge_python(sys.version_info[:2]),
        check_packages(),
        check_torch(),
        check_gpu(),
        check_atari(),
        check_gymnasium(),
        check_disk(),
        check_shared_memory(),
        check_memory(),
    ]


def report(checks: list[Check], console: Console) -> int:
    """Print the table, then each fix in a line by itself so that it can be pasted; return the exit code."""
    table = Table("check", "health", "found")
    for check in checks:
        table.add_row(check.subject, Text(check.health.name, check.health.value), Text(check.found))
    console.print(table)
    for check in checks:
        if check.fix:
            health = (check.health.name, check.health.value)
            console.print(Text.assemble(health, f" {check.subject}: {check.fix}"), soft_wrap=True)
    return int(any(check.health is Health.FAIL for check in checks))


def judge_system(name: str) -> Check:
    """Judge the operating system, named as `sys.platform` names it; on Windows not even this runs."""
    missing = lacks(name)
    if missing is None:
        return Check("system", Health.OK, platform.platform())
    return Check("system", Health.WARN, missing, "Long runs belong on Linux; short ones may work here")


def judge_python(version: tuple[int, int]) -> Check:
    """Judge the (major, minor) version of Python."""
    found = f"{version[0]}.{version[1]} at {sys.executable}"
    fix = "Make the environment with Python 3.11 or 3.12: python3.11 -m venv .venv"
    if version < (3, 11):
        return Check("Python", Health.FAIL, found, fix)
    if version > (3, 12):
        return Check("Python", Health.WARN, f"{found}; tested with 3.11 and 3.12", fix)
    return Check("Python", Health.OK, found)


def judge_packages(requirements: Iterable[str]) -> Check:
    """Judge whether the installed packages are in the ranges asked for.

    Args:
        requirements: As in package metadata, such as `torch>=2.11`; those of extras are left out.
    """
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
        fix = shlex.join([sys.executable, "-m", "pip", "install", *repairs])
        return Check("packages", Health.FAIL, "; ".join(wrong), fix)
    return Check("packages", Health.OK, f"all {count} in the ranges of pyproject.toml")


def check_packages() -> Check:
    """Hold the installed packages against what Reverie's own metadata ask for."""
    try:
        requirements = importlib.metadata.requires("reverie") or []
    except importlib.metadata.PackageNotFoundError:  # imported from a folder, not installed
        fix = shlex.join([sys.executable, "-m", "pip", "install", "-c", "constraints.txt", "-e", "."])
        return Check("packages", Health.WARN, "Reverie is not installed, only importable", fix)
    return judge_packages(requirements)


def nvidia_driver_version() -> str | None:
    """Return the version of the NVIDIA driver, or None where there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def judge_missing_gpu(cuda_build: str | None, driver: str | None, reason: str) -> Check:
    """Judge a machine on which PyTorch sees no CUDA device.

    Args:
        cuda_build: CUDA version that PyTorch was built for; None for a CPU build.
        driver: Version of the NVIDIA driver, if there is one.
        reason: What PyTorch says about it; may be empty.
    """
    if driver is None:
        fix = "None needed for Catch and CartPole; for Pong take a machine with an NVIDIA GPU and its driver"
        return Check("GPU", Health.WARN, "no NVIDIA driver: runs take the small CPU preset", fix)
    if cuda_build is None:
        wheel = f"torch=={torch.__version__.partition('+')[0]}"
        command = [sys.executable, "-m", "pip", "install", "--force-reinstall", wheel]
        found = f"driver {driver}, but PyTorch is a CPU build: the GPU is not used"
        return Check("GPU", Health.WARN, found, shlex.join(command))
    found = f"driver {driver}, PyTorch built for CUDA {cuda_build}, but no device. {reason}".strip()
    fix = f"Unset CUDA_VISIBLE_DEVICES, update the driver, or take a PyTorch for a CUDA before {cuda_build}"
    return Check("GPU", Health.WARN, found, fix)


def check_gpu() -> Check:
    """Use the GPU for a moment, if there is one."""
    with warnings.catch_warnings(record=True) as said:  # PyTorch says here that a driver is too old
        warnings.simplefilter("always")
        is_available = torch.cuda.is_available()
    driver = nvidia_driver_version()
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
    found = f"{name}, {versions}, {bfloat16} bfloat16, {gib(free)} free of {gib(total)}"
    if free < GPU_WARN_BYTES:
        fix = "Close what else uses the GPU (nvidia-smi shows it), or take a smaller model: model=size1m"
        return Check("GPU", Health.WARN, found, fix)
    return Check("GPU", Health.OK, found)


def check_torch() -> Check:
    """Tell which PyTorch this is; whether it is new enough is a matter of `check_packages`."""
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    found = f"{torch.__version__} ({build} build), {torch.get_num_threads()} threads"
    return Check("PyTorch", Health.OK, found)


def check_atari() -> Check:
    """Start Pong in ale-py's vector environment, ROM included."""
    fix = shlex.join([sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", "ale-py"])
    try:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        env = AtariVectorEnv("pong", num_envs=1, grayscale=False, stack_num=1, img_height=64, img_width=64)
        image = env.reset(seed=0)[0]
        env.close()
    except Exception as error:  # whatever it is, it belongs in the report
        return Check("Atari", Health.FAIL, f"Pong does not start: {_one_line(error)}", fix)
    if image.max() == image.min():
        return Check("Atari", Health.FAIL, "Pong starts, but its screen is one colour", fix)
    return Check("Atari", Health.OK, f"ale-py {ale_py.__version__}, Pong starts")


def check_gymnasium() -> Check:
    """Start CartPole."""
    try:
        import gymnasium

        env = gymnasium.make("CartPole-v1")
        env.reset(seed=0)
        env.close()
    except Exception as error:  # whatever it is, it belongs in the report
        fix = shlex.join([sys.executable, "-m", "pip", "install", "gymnasium[classic-control]"])
        return Check("Gymnasium", Health.FAIL, f"CartPole does not start: {_one_line(error)}", fix)
    return Check("Gymnasium", Health.OK, f"{gymnasium.__version__}, CartPole starts")


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def judge_disk(folder: Path, free: int, is_writable: bool) -> Check:
    """Judge the folder in which runs would be written, with `free` bytes left on its disk."""
    elsewhere = "run_dir=<a folder on another disk>"
    if not is_writable:
        return Check(
            "disk", Health.FAIL, f"{folder} cannot be written to", f"Start elsewhere, or {elsewhere}"
        )
    found = f"{gib(free)} free in {folder}"
    if free >= DISK_WARN_BYTES:
        return Check("disk", Health.OK, found)
    health = Health.FAIL if free < DISK_FAIL_BYTES else Health.WARN
    return Check("disk", health, found, f"Free {gib(DISK_WARN_BYTES)}, or {elsewhere}")


def check_disk() -> Check:
    """Look at the current folder, where `experiments/` is made."""
    folder = Path.cwd()
    return judge_disk(folder, shutil.disk_usage(folder).free, os.access(folder, os.W_OK))


def judge_shared_memory(free: int | None) -> Check:
    """Judge the free bytes of /dev/shm, None where there is no such folder."""
    found = "no /dev/shm" if free is None else f"{gib(free)} free in /dev/shm"
    if free is not None and free >= SHARED_MEMORY_WARN_BYTES:
        return Check("shared memory", Health.OK, found)
    fix = "In Docker: docker run --shm-size=1g ...; elsewhere env.vectorization=sync does without it"
    return Check("shared memory", Health.WARN, found, fix)


def check_shared_memory() -> Check:
    """Look at /dev/shm, through which environments in worker processes send observations."""
    folder = Path("/dev/shm")
    return judge_shared_memory(shutil.disk_usage(folder).free if folder.is_dir() else None)


def judge_memory(available: int, cgroup_limit: int | None) -> Check:
    """Judge the bytes of memory that can be taken now; a control group may limit what that can ever be."""
    limit = "no cgroup limit" if cgroup_limit is None else f"cgroup limit {gib(cgroup_limit)}"
    found = f"{gib(available)} available, {limit}"
    if available >= MEMORY_WARN_BYTES:
        return Check("memory", Health.OK, found)
    health = Health.FAIL if available < MEMORY_FAIL_BYTES else Health.WARN
    if cgroup_limit is None or cgroup_limit >= MEMORY_WARN_BYTES:
        return Check("memory", health, found, "Close other programs, or lower buffer.capacity to 20000")
    return Check("memory", health, found, "Raise the container's limit: docker run --memory=8g ...")


def check_memory() -> Check:
    """Look at the machine's memory and at the limit of the control group."""
    limit = memory_limit_bytes()
    is_limited = limit < psutil.virtual_memory().total
    return judge_memory(memory_available_bytes(), limit if is_limited else None)


def gib(num_bytes: int) -> str:
    """Return bytes as people read them.

    >>> gib(1_610_612_736)
    '1.5 GiB'
    """
    return f"{num_bytes / 2**30:.1f} GiB"
