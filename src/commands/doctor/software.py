"""Checks of what is installed: system, Python, the packages, PyTorch and the GPU, the environments."""

import importlib.metadata
import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterable

import torch
from packaging.requirements import Requirement

from ...utils.system import lacks
from .finding import Finding, Verdict, gib

GPU_WARN_BYTES = 4608 * 2**20  # what a 6 GB card has free beside a desktop and the CUDA context


def judge_system(name: str) -> Finding:
    """Judge the operating system, named as `sys.platform` names it; on Windows not even this runs."""
    missing = lacks(name)
    if missing is None:
        return Finding("system", Verdict.OK, platform.platform())
    return Finding("system", Verdict.WARN, missing, "Long runs belong on Linux; short ones may work here")


def judge_python(version: tuple[int, int]) -> Finding:
    """Judge the (major, minor) version of Python."""
    found = f"{version[0]}.{version[1]} at {sys.executable}"
    fix = "Make the environment with Python 3.11 or 3.12: python3.11 -m venv .venv"
    if version < (3, 11):
        return Finding("Python", Verdict.FAIL, found, fix)
    if version > (3, 12):
        return Finding("Python", Verdict.WARN, f"{found}; tested with 3.11 and 3.12", fix)
    return Finding("Python", Verdict.OK, found)


def judge_packages(requirements: Iterable[str]) -> Finding:
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
        return Finding("packages", Verdict.FAIL, "; ".join(wrong), fix)
    return Finding("packages", Verdict.OK, f"all {count} in the ranges of pyproject.toml")


def check_packages() -> Finding:
    """Hold the installed packages against what Reverie's own metadata ask for."""
    try:
        requirements = importlib.metadata.requires("reverie") or []
    except importlib.metadata.PackageNotFoundError:  # imported from a folder, not installed
        fix = shlex.join([sys.executable, "-m", "pip", "install", "-c", "constraints.txt", "-e", "."])
        return Finding("packages", Verdict.WARN, "Reverie is not installed, only importable", fix)
    return judge_packages(requirements)


def nvidia_driver_version() -> str | None:
    """Return the version of the NVIDIA driver, or None where there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def judge_missing_gpu(cuda_build: str | None, driver: str | None, reason: str) -> Finding:
    """Judge a machine on which PyTorch sees no CUDA device.

    Args:
        cuda_build: CUDA version that PyTorch was built for; None for a CPU build.
        driver: Version of the NVIDIA driver, if there is one.
        reason: What PyTorch says about it; may be empty.
    """
    if driver is None:
        fix = "None needed for Catch and CartPole; for Pong take a machine with an NVIDIA GPU and its driver"
        return Finding("GPU", Verdict.WARN, "no NVIDIA driver: runs take the small CPU preset", fix)
    if cuda_build is None:
        wheel = f"torch=={torch.__version__.partition('+')[0]}"
        command = [sys.executable, "-m", "pip", "install", "--force-reinstall", wheel]
        found = f"driver {driver}, but PyTorch is a CPU build: the GPU is not used"
        return Finding("GPU", Verdict.WARN, found, shlex.join(command))
    found = f"driver {driver}, PyTorch built for CUDA {cuda_build}, but no device. {reason}".strip()
    fix = f"Unset CUDA_VISIBLE_DEVICES, update the driver, or take a PyTorch for a CUDA before {cuda_build}"
    return Finding("GPU", Verdict.WARN, found, fix)


def check_gpu() -> Finding:
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
        return Finding("GPU", Verdict.FAIL, f"{versions}: {_one_line(error)}", fix)
    bfloat16 = "with" if torch.cuda.is_bf16_supported(including_emulation=False) else "without"
    name = torch.cuda.get_device_name()
    found = f"{name}, {versions}, {bfloat16} bfloat16, {gib(free)} free of {gib(total)}"
    if free < GPU_WARN_BYTES:
        fix = "Close what else uses the GPU (nvidia-smi shows it), or take a smaller model: model=size1m"
        return Finding("GPU", Verdict.WARN, found, fix)
    return Finding("GPU", Verdict.OK, found)


def check_torch() -> Finding:
    """Tell which PyTorch this is; whether it is new enough is a matter of `check_packages`."""
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    found = f"{torch.__version__} ({build} build), {torch.get_num_threads()} threads"
    return Finding("PyTorch", Verdict.OK, found)


def check_atari() -> Finding:
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
        return Finding("Atari", Verdict.FAIL, f"Pong does not start: {_one_line(error)}", fix)
    if image.max() == image.min():
        return Finding("Atari", Verdict.FAIL, "Pong starts, but its screen is one colour", fix)
    return Finding("Atari", Verdict.OK, f"ale-py {ale_py.__version__}, Pong starts")


def check_gymnasium() -> Finding:
    """Start CartPole."""
    try:
        import gymnasium

        env = gymnasium.make("CartPole-v1")
        env.reset(seed=0)
        env.close()
    except Exception as error:  # whatever it is, it belongs in the report
        fix = shlex.join([sys.executable, "-m", "pip", "install", "gymnasium[classic-control]"])
        return Finding("Gymnasium", Verdict.FAIL, f"CartPole does not start: {_one_line(error)}", fix)
    return Finding("Gymnasium", Verdict.OK, f"{gymnasium.__version__}, CartPole starts")


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
