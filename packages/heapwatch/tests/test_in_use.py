"""The bytes in use follow objects of every kind exactly, unlike resident memory."""

import gc
import itertools
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from heapwatch.counters.glibc import (
    counts_allocations,
    in_use_bytes,
    in_use_source,
    kernel_counts,
)

from .fresh import in_a_fresh_process

# Overhead of one array: header, alignment, and the Python object.
BLOCK_OVERHEAD_BYTES = 1024
PAGE_BYTES = 4096
ARENA_BYTES, MAPPED_BYTES, ARRAYS = 60_000, 1_000_000, 40
MAKERS: dict[str, Callable[[int], object]] = {
    "torch": lambda size: torch.empty(size, dtype=torch.uint8),
    "numpy": lambda size: np.empty(size, np.uint8),
    "python": bytearray,
}
exact_only = pytest.mark.skipif(not in_use_source().startswith("mallinfo2"), reason="needs glibc's allocator")
SOURCE_SCRIPT = "from heapwatch.counters.glibc import in_use_source; print(in_use_source())"


@exact_only
def test_a_kept_heap_is_not_asked_for_again() -> None:
    # A separate process, because the choice is permanent.
    script = """if True:
        import resource, sys
        import torch
        from heapwatch.counters.glibc import keep_heap, trim_heap
        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            held = [torch.ones(5_000_000) for _ in range(10)]  # 20 MB each
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        keep_heap()
        kept = [faults() for _ in range(4)][-1]
        trim_heap()
        print(kept, faults())
    """
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    kept, trimmed = map(int, result.stdout.split())
    pages = 200_000_000 // PAGE_BYTES
    assert kept < pages / 100 < pages / 4 < trimmed


def changes_by_arrays() -> dict[tuple[str, int], tuple[int, int]]:
    """Return the rise and fall of the count for arrays of each kind and size."""
    found = {}
    for (name, make), size in itertools.product(MAKERS.items(), (ARENA_BYTES, MAPPED_BYTES)):
        # The first round fills caches of the allocator and of Python.
        held = [make(size) for _ in range(ARRAYS)]
        del held
        before = in_use_bytes()
        held = [make(size) for _ in range(ARRAYS)]
        rise = in_use_bytes() - before
        del held
        found[name, size] = rise, before + rise - in_use_bytes()
    return found


@pytest.fixture(scope="module")
def changes() -> dict[tuple[str, int], tuple[int, int]]:
    # In a fresh process, no thread of the test runner allocates at the same time.
    return in_a_fresh_process(changes_by_arrays)


@exact_only
@pytest.mark.parametrize("size", [ARENA_BYTES, MAPPED_BYTES], ids=["from an arena", "mapped"])
@pytest.mark.parametrize("name", MAKERS)
def test_arrays_count_by_their_bytes_and_leave_with_them(
    changes: dict[tuple[str, int], tuple[int, int]], name: str, size: int
) -> None:
    rise, fall = changes[name, size]
    most = ARRAYS * (BLOCK_OVERHEAD_BYTES if size < 128_000 else 2 * PAGE_BYTES)
    assert 0 <= rise - ARRAYS * size <= most
    assert fall == pytest.approx(rise, abs=BLOCK_OVERHEAD_BYTES)


def memory_that_was_never_touched() -> tuple[int, int]:
    # The first tensor and the first count trigger one-time allocations.
    torch.empty(64_000_000, dtype=torch.uint8)
    in_use_bytes()
    before, resident = in_use_bytes(), kernel_counts()["rss_anon"]
    held = torch.empty(64_000_000, dtype=torch.uint8)
    return in_use_bytes() - before - held.nbytes, kernel_counts()["rss_anon"] - resident


@exact_only
def test_memory_that_was_never_touched_is_in_use() -> None:
    in_use, resident = in_a_fresh_process(memory_that_was_never_touched)
    assert in_use == pytest.approx(0, abs=2 * PAGE_BYTES)
    assert resident < 1_000_000


def freed_tuples() -> tuple[int, int]:
    gc.collect()
    before = in_use_bytes()
    held = [tuple(range(length)) for length in range(1, 18) for _ in range(2_000)]
    size = sum(map(sys.getsizeof, held))
    del held
    return size, in_use_bytes() - before


@pytest.mark.skipif(in_use_source() != "mallinfo2 + pymalloc", reason="needs Python's own count")
def test_freed_objects_that_python_keeps_for_reuse_are_not_in_use() -> None:
    # CPython keeps up to 2,000 tuples of each length until a full garbage collection.
    size, in_use = in_a_fresh_process(freed_tuples)
    assert size > 3_000_000
    assert in_use == pytest.approx(0, abs=30_000)


def small_python_objects() -> tuple[int, int, int]:
    before = in_use_bytes()
    held = [float(value) for value in range(100_000)]
    rise, size = in_use_bytes() - before, sys.getsizeof(held)
    del held
    return rise, size, in_use_bytes() - before


@pytest.mark.skipif(in_use_source() != "mallinfo2 + pymalloc", reason="needs Python's own count")
def test_small_python_objects_count_by_their_bytes() -> None:
    rise, size_of_list, left = in_a_fresh_process(small_python_objects)
    # 24 bytes are rounded up to 32.
    assert rise == pytest.approx(100_000 * 32 + size_of_list, abs=20_000)
    assert left == pytest.approx(0, abs=20_000)


def retained_graph() -> tuple[int, int]:
    weight = torch.ones(500, 500, requires_grad=True)
    state = torch.ones(500, 500)
    # This triggers one-time allocations of the library.
    (state @ weight).sum()
    before = in_use_bytes()
    for _ in range(10):
        state = state @ weight
    return in_use_bytes() - before, 10 * state.nbytes


def traced_objects() -> tuple[int, int, int]:
    kept = [float(number) for number in range(200_000)]
    before = in_use_bytes()
    tracemalloc.start()
    traced = in_use_bytes() - tracemalloc.get_tracemalloc_memory()
    kept += [float(number) for number in range(200_000)]
    more = in_use_bytes() - tracemalloc.get_tracemalloc_memory()
    tracemalloc.stop()
    return before, traced, more


@pytest.mark.skipif(in_use_source() != "mallinfo2 + pymalloc", reason="needs Python's own count")
def test_tracemalloc_does_not_hide_small_python_objects() -> None:
    before, traced, more = in_a_fresh_process(traced_objects)
    assert traced == pytest.approx(before, abs=1_000_000)
    assert more - traced > 200_000 * 32


@exact_only
def test_a_retained_graph_is_in_use() -> None:
    found, expected = in_a_fresh_process(retained_graph)
    assert found == pytest.approx(expected, rel=0.02)


def test_a_counter_that_does_not_count_is_found_out() -> None:
    assert not counts_allocations(lambda: 0)
    # This counter rises but never falls.
    assert not counts_allocations(iter(range(0, 30_000_000, 8_000_000)).__next__)


def test_without_pymalloc_the_c_allocator_counts_small_objects_and_says_so() -> None:
    environment = os.environ | {"PYTHONMALLOC": "malloc"}
    script = SOURCE_SCRIPT + (
        "\nfrom heapwatch.counters.glibc import in_use_bytes"
        "\nbefore = in_use_bytes()"
        "\nheld = [float(value) for value in range(100_000)]"
        "\nprint(in_use_bytes() - before)"
    )
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    source, rise = child.stdout.split("\n", 1)
    if source == "mallinfo2":
        assert int(rise) == pytest.approx(100_000 * (32 + 8), rel=0.02)
    assert source in ("mallinfo2", "RssAnon", "USS")
