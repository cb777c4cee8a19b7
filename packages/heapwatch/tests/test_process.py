"""The system's counts agree with files, processes and memory that the tests create."""

import mmap
import os
import subprocess
import sys
import time
from functools import partial
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest
from heapwatch.counters.glibc import kernel_counts, parse_status
from heapwatch.counters.process import (
    host_memory_stats,
    live_children,
    open_files_count,
    process_rss_mb,
)

from .fresh import in_a_fresh_process

LONG_ENOUGH_SECONDS = 600.0

MB = 1_000_000
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
WAITING_CHILD = "import sys; print('ready', flush=True); sys.stdin.read()"


def test_the_text_of_status_is_read_in_bytes() -> None:
    text = "Name:\tpython\nVmRSS:\t 300 kB\nRssAnon:\t  112 kB\nRssFile:\t 1636 kB\nRssShmem:\t 0 kB\n"
    text += "VmData:\t 1024 kB\nThreads:\t3\n"
    sizes = {"rss_anon": 112 * 1024, "rss_file": 1636 * 1024, "rss_shmem": 0, "mapped": 1 << 20}
    assert parse_status(text) == sizes | {"threads": 3}


def test_a_system_that_does_not_tell_the_kinds_apart_has_no_keys() -> None:
    assert parse_status("Name:\tpython\nVmRSS:\t 300 kB\n") == {}


def rise_by_kinds(file: Path) -> dict[str, int]:
    """Return the rise of each kind with 64 MB of private, 32 of file-backed and 24 of shared memory."""
    # Above 32 MiB, glibc maps new memory instead of reusing freed memory.
    before = kernel_counts()
    private = np.ones(64 * MB, np.uint8)
    mapped = np.memmap(file, np.uint8, mode="r")
    assert private.sum() == 64 * MB and mapped.sum() == 32 * MB * ord("1")
    # Anonymous shared memory is used to communicate with worker processes.
    with mmap.mmap(-1, 24 * MB) as shared:
        for _ in range(24):
            shared.write(b"1" * MB)
        after = kernel_counts()
    return {kind: after[kind] - before[kind] for kind in before}


@linux_only
def test_private_file_and_shared_memory_are_counted_separately(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"1" * 32 * MB)
    rise = in_a_fresh_process(partial(rise_by_kinds, file))
    assert rise["rss_anon"] == pytest.approx(64 * MB, abs=4 * MB)
    assert rise["rss_file"] == pytest.approx(32 * MB, abs=4 * MB)
    assert rise["rss_shmem"] == pytest.approx(24 * MB, abs=MB)


@linux_only
def test_a_child_counts_while_it_runs() -> None:
    children = len(live_children())
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        assert len(live_children()) == children + 1
        child.kill()
        # The child has ended but was not waited for.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert len(live_children()) == children


@linux_only
def test_open_files_are_counted_one_by_one(tmp_path: Path) -> None:
    before = open_files_count()
    with open(tmp_path / "a", "w"), open(tmp_path / "b", "w"):
        assert open_files_count() == before + 2
    assert open_files_count() == before


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
def test_shared_memory_of_a_worker_is_seen_until_it_is_unlinked() -> None:
    # Other processes also use shared memory, so this waits for a moment without changes by them.
    deadline = time.monotonic() + LONG_ENOUGH_SECONDS
    while (changes := changes_by_a_block()) != pytest.approx([16 * MB, 0], abs=MB):
        assert time.monotonic() < deadline, changes


def changes_by_a_block() -> list[float]:
    """Return the change of shared memory with a block of 16 MB, and after its release, in bytes."""
    before = shared_bytes()
    block = shared_memory.SharedMemory(create=True, size=16 * MB)
    assert block.buf is not None
    try:
        block.buf[:] = b"1" * len(block.buf)
        during = shared_bytes()
    finally:
        block.close()
        block.unlink()
    after = shared_bytes()
    return [during - before, after - before]


def shared_bytes() -> float:
    """Return the used shared memory."""
    return host_memory_stats()["shared_memory_mb"] * MB


@linux_only
def test_a_log_line_has_every_count_under_a_name_with_its_unit() -> None:
    stats = host_memory_stats()
    assert set(stats) == {
        "rss_mb", "in_use_mb", "rss_anon_mb", "rss_file_mb", "rss_shmem_mb", "shared_memory_mb",
        "mapped_mb", "threads_count", "open_files_count", "children_count",
    }  # fmt: skip
    kinds = stats["rss_anon_mb"] + stats["rss_file_mb"] + stats["rss_shmem_mb"]
    assert kinds == pytest.approx(stats["rss_mb"], rel=0.05)
    assert stats["rss_mb"] == pytest.approx(process_rss_mb(), rel=0.05)
