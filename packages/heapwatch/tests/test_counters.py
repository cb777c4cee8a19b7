"""The counters agree with memory that is actually allocated."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from heapwatch.counters.cuda import gpu_memory_stats
from heapwatch.counters.process import process_rss_mb

from .fresh import in_a_fresh_process

FORK_SCRIPT = """
import os
import numpy as np
from heapwatch.counters.process import process_rss_mb
process_rss_mb()
if os.fork() == 0:
    before = process_rss_mb()
    held = np.ones(64_000_000, np.uint8)
    print(process_rss_mb() - before, flush=True)
    os._exit(0)
os.wait()
"""


def resident_memory_of_an_array() -> list[float]:
    """Return the change in MB after an array is allocated, touched and freed."""
    before, changes = process_rss_mb(), []
    held = np.empty(256_000_000, np.uint8)
    changes.append(process_rss_mb() - before)
    held[:] = 1
    changes.append(process_rss_mb() - before)
    del held
    return [*changes, process_rss_mb() - before]


def test_resident_memory_grows_by_what_is_touched_and_falls_when_it_is_freed() -> None:
    # Runs in this process may have left free heap memory for the array.
    assert in_a_fresh_process(resident_memory_of_an_array) == pytest.approx([0, 256, 0], abs=32)


def test_a_forked_process_counts_its_own_memory() -> None:
    # A separate process, because forking the test process would copy locks of its threads.
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK_SCRIPT], capture_output=True, text=True, check=True
    )
    assert float(child.stdout) == pytest.approx(64, abs=8)


@pytest.mark.gpu
def test_gpu_counters_follow_one_tensor_to_the_byte() -> None:
    # Before the first use of CUDA the counters are 0.
    torch.cuda.init()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = gpu_memory_stats()
    held = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
    during = gpu_memory_stats()
    assert during["alloc_mb"] - before["alloc_mb"] == pytest.approx(held.nbytes / 1e6)
    assert during["reserved_mb"] - before["reserved_mb"] == pytest.approx(held.nbytes / 1e6)
    assert during["max_alloc_mb"] == pytest.approx(during["alloc_mb"])
    del held
    after = gpu_memory_stats()
    assert after["alloc_mb"] == pytest.approx(before["alloc_mb"])
    # Freed tensors stay cached.
    assert after["reserved_mb"] == pytest.approx(during["reserved_mb"])
    assert after["max_alloc_mb"] == pytest.approx(during["max_alloc_mb"])
