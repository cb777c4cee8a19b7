"""CUDA counters. Cases without a GPU use given numbers."""

import pytest
import torch
from heapwatch.counters.cuda import device_stats_mb, gpu_memory_stats

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


def test_freed_blocks_that_wait_for_a_stream_are_pending() -> None:
    counters = {
        "allocated_bytes.all.current": 30_000_000,
        "allocated_bytes.small_pool.current": 10_000_000,
        "allocated_bytes.large_pool.current": 20_000_000,
        "active_bytes.all.current": 34_000_000,
        "reserved_bytes.all.current": 60_000_000,
        "inactive_split_bytes.all.current": 5_000_000,
        "allocated_bytes.all.peak": 40_000_000,
        "reserved_bytes.all.peak": 60_000_000,
    }
    assert device_stats_mb(counters) == {
        "alloc_mb": 30,
        "small_pool_mb": 10,
        "large_pool_mb": 20,
        "pending_free_mb": 4,
        "reserved_mb": 60,
        "inactive_split_mb": 5,
        "max_alloc_mb": 40,
        "max_reserved_mb": 60,
    }


def test_before_the_first_use_of_a_device_nothing_is_held() -> None:
    assert set(device_stats_mb({}).values()) == {0}


@without_cuda
def test_without_cuda_there_are_no_counters() -> None:
    assert gpu_memory_stats() == {}


@pytest.mark.gpu
def test_gpu_pools_follow_small_and_large_tensors_to_the_byte() -> None:
    # Before the first use of CUDA the counters are 0.
    torch.cuda.init()
    torch.cuda.empty_cache()
    before = gpu_memory_stats()
    small = [torch.empty(512 * 1024, dtype=torch.uint8, device="cuda") for _ in range(8)]
    large = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
    during = gpu_memory_stats()
    assert during["small_pool_mb"] - before["small_pool_mb"] == pytest.approx(8 * small[0].nbytes / 1e6)
    assert during["large_pool_mb"] - before["large_pool_mb"] == pytest.approx(large.nbytes / 1e6)
    assert during["small_pool_mb"] + during["large_pool_mb"] == pytest.approx(during["alloc_mb"])
    # Every second small block of a segment is freed. The gaps cannot be returned to the driver.
    del small[::2]
    assert gpu_memory_stats()["inactive_split_mb"] > before["inactive_split_mb"]


@pytest.mark.gpu
def test_gpu_memory_freed_while_another_stream_uses_it_is_pending() -> None:
    stream = torch.cuda.Stream()
    held = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
    held.record_stream(stream)
    before = gpu_memory_stats()["pending_free_mb"]
    size_mb = held.nbytes / 1e6
    del held
    assert gpu_memory_stats()["pending_free_mb"] - before == pytest.approx(size_mb)
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_gpu_pinned_memory_is_rounded_up_and_stays_reserved() -> None:
    before = gpu_memory_stats().get("pinned_reserved_mb", 0)
    held = torch.empty(48 * 2**20, dtype=torch.uint8).pin_memory()
    during = gpu_memory_stats()
    if "pinned_reserved_mb" not in during:
        pytest.skip("this PyTorch has no counters of pinned memory")
    assert held.is_pinned()
    # 48 MiB round up to 64 MiB.
    assert during["pinned_reserved_mb"] - before == pytest.approx(64 * 2**20 / 1e6)
    del held
    assert gpu_memory_stats()["pinned_reserved_mb"] == pytest.approx(during["pinned_reserved_mb"])
