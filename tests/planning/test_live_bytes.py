"""Storages are counted from creation to release, exactly, for real and for meta tensors."""

import gc
import weakref

import pytest
import torch
from heapwatch.counters.glibc import in_use_bytes, in_use_source
from torch import Tensor, nn

from reverie.planning.torch_modes import LiveBytes

ROWS = 256


def train_once(net: nn.Module, device: str) -> None:
    x = torch.ones(ROWS, 64, device=device)
    net(x).square().mean().backward()


def net_on(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 32)).to(device)


def test_a_view_adds_nothing_and_keeps_its_storage_counted() -> None:
    with LiveBytes() as counter:
        whole = torch.zeros(1000)
        row = whole[:1]
        del whole
        assert counter.live == 4000
        del row
    assert (counter.live, counter.peak) == (0, 4000)


def test_the_peak_is_the_simultaneous_maximum_and_not_the_sum() -> None:
    with LiveBytes() as counter:
        for _ in range(3):
            torch.zeros(1000)
        a = torch.zeros(500)
        a.add_(1)
        assert (counter.live, counter.peak) == (2000, 4000)
        counter.reset_peak()
        assert counter.peak == 2000


def test_a_storage_that_dies_after_the_block_is_taken_off_too() -> None:
    with LiveBytes() as counter:
        a = torch.zeros(1000)
    assert counter.live == a.untyped_storage().nbytes()
    del a
    assert counter.live == 0


def test_labels_describe_the_contents_of_the_peak() -> None:
    weight = torch.zeros(100)
    with LiveBytes() as counter:
        counter.count([weight, weight], "weights")
        counter.label = "work"
        work = weight + 1
        kept = work * 2
        counter.count([kept], "kept")
        del work
    assert counter.live_by_label == {"weights": 400, "work": 0, "kept": 400}
    assert counter.peak_by_label == {"weights": 400, "work": 800}
    assert counter.peak == 1200


def test_lists_of_tensors_are_counted_each() -> None:
    with LiveBytes() as counter:
        values = torch._foreach_mul([torch.ones(10), torch.ones(20)], 2.0)
        assert counter.live == sum(value.nbytes for value in values)


def test_sizes_are_rounded_up_as_an_allocator_does() -> None:
    with LiveBytes(granularity=512) as counter:
        held = [torch.zeros(1), torch.zeros(129)]
        assert counter.live == 512 + 1024
    assert len(held) == 2


def test_nothing_is_kept_alive() -> None:
    counter = LiveBytes()
    with counter:
        a = torch.zeros(10)
    alive = weakref.ref(a)
    del a
    assert alive() is None and not counter._storages


def test_tensors_without_memory_are_counted_like_real_ones() -> None:
    peaks = []
    for device in ("cpu", "meta"):
        net = net_on(device)
        with LiveBytes() as counter:
            counter.count(net.parameters())
            train_once(net, device)
        peaks.append((counter.peak, counter.live, counter.operators))
    assert peaks[0] == peaks[1]


@pytest.mark.skipif(not in_use_source().startswith("mallinfo2"), reason="needs glibc's allocator")
def test_live_bytes_are_those_that_the_allocator_gave() -> None:
    def activations() -> list[Tensor]:
        x = torch.ones(ROWS, 4096)
        return [x, x.exp(), x.sum(0), x.view(-1)[:7]]

    activations()
    gc.collect()
    before = in_use_bytes()
    with LiveBytes() as counter:
        held = activations()
        assert in_use_bytes() - before == pytest.approx(counter.live, rel=0.01)
    assert counter.live == 2 * held[0].nbytes + held[2].nbytes
