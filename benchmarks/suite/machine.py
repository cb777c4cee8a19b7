"""Describe the machine and the software versions behind a measurement."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie import __version__

_CPU_INFO = Path("/proc/cpuinfo")
# Results that a benchmark has just written do not count as changes of the checkout.
_NO_RESULTS = ("--", ":/", ":(exclude,top)docs/results")


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Return processor, cores, GPU, versions, commit and time."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "numpy": np.__version__,
        "reverie": __version__,
        "commit": _commit(),
    }


def _cpu_name() -> str:
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    """Return the commit, with a + if files other than results differ, or `None` outside a checkout."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain", *_NO_RESULTS) else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
