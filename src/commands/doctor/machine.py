"""Checks of what the machine gives: disk, shared memory, memory and the limits of the container."""

import os
import shutil
from pathlib import Path

import psutil

from ...memory.counters.limits import memory_available_bytes, memory_limit_bytes
from .finding import Finding, Verdict, gib

GIB = 2**30

# The Pong run: 1.2 GB of replay, saved with each checkpoint that is kept, and about 3 GB of process.
DISK_FAIL_BYTES, DISK_WARN_BYTES = 1 * GIB, 10 * GIB
MEMORY_FAIL_BYTES, MEMORY_WARN_BYTES = 2 * GIB, 4 * GIB
SHARED_MEMORY_WARN_BYTES = 256 * 2**20


def judge_disk(folder: Path, free: int, is_writable: bool) -> Finding:
    """Judge the folder in which runs would be written, with `free` bytes left on its disk."""
    elsewhere = "run_dir=<a folder on another disk>"
    if not is_writable:
        return Finding(
            "disk", Verdict.FAIL, f"{folder} cannot be written to", f"Start elsewhere, or {elsewhere}"
        )
    found = f"{gib(free)} free in {folder}"
    if free >= DISK_WARN_BYTES:
        return Finding("disk", Verdict.OK, found)
    verdict = Verdict.FAIL if free < DISK_FAIL_BYTES else Verdict.WARN
    return Finding("disk", verdict, found, f"Free {gib(DISK_WARN_BYTES)}, or {elsewhere}")


def check_disk() -> Finding:
    """Look at the current folder, where `experiments/` is made."""
    folder = Path.cwd()
    return judge_disk(folder, shutil.disk_usage(folder).free, os.access(folder, os.W_OK))


def judge_shared_memory(free: int | None) -> Finding:
    """Judge the free bytes of /dev/shm, None where there is no such folder."""
    found = "no /dev/shm" if free is None else f"{gib(free)} free in /dev/shm"
    if free is not None and free >= SHARED_MEMORY_WARN_BYTES:
        return Finding("shared memory", Verdict.OK, found)
    fix = "In Docker: docker run --shm-size=1g ...; elsewhere env.vectorization=sync does without it"
    return Finding("shared memory", Verdict.WARN, found, fix)


def check_shared_memory() -> Finding:
    """Look at /dev/shm, through which environments in processes of their own send their observations."""
    folder = Path("/dev/shm")
    return judge_shared_memory(shutil.disk_usage(folder).free if folder.is_dir() else None)


def judge_memory(available: int, cgroup_limit: int | None) -> Finding:
    """Judge the bytes of memory that can be taken now; a control group may limit what that can ever be."""
    limit = "no cgroup limit" if cgroup_limit is None else f"cgroup limit {gib(cgroup_limit)}"
    found = f"{gib(available)} available, {limit}"
    if available >= MEMORY_WARN_BYTES:
        return Finding("memory", Verdict.OK, found)
    verdict = Verdict.FAIL if available < MEMORY_FAIL_BYTES else Verdict.WARN
    if cgroup_limit is None or cgroup_limit >= MEMORY_WARN_BYTES:
        return Finding("memory", verdict, found, "Close other programs, or lower buffer.capacity to 20000")
    return Finding("memory", verdict, found, "Raise the container's limit: docker run --memory=8g ...")


def check_memory() -> Finding:
    """Look at the machine's memory and at the limit of the control group."""
    limit = memory_limit_bytes()
    is_limited = limit < psutil.virtual_memory().total
    return judge_memory(memory_available_bytes(), limit if is_limited else None)
