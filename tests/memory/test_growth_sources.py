"""Who holds what grew, where only C++ knows."""

import gc

import pytest
import torch
from torch import nn

from reverie.memory.objects.heap import NATIVE, growth_sources, measure_heap

MANY = 4001


def leave_cycle(size: int) -> None:
    """Leave a parameter and its gradient that keep each other alive, and that only C++ holds."""
    parameter = nn.Parameter(torch.zeros(size))
    (parameter**3).sum().backward(create_graph=True)


@pytest.mark.filterwarnings(r"ignore:Using backward\(\) with create_graph=True")
def test_only_what_cpp_holds_more_of_than_before_is_to_blame() -> None:
    for _ in range(20):
        leave_cycle(MANY)
    before = measure_heap({}, is_whole=True)
    named = " ".join(growth_sources({}, before, 1, rise_bytes=0.0).lines)
    assert f"({MANY},)" not in named
    found = growth_sources({}, before, 1, rise_bytes=1e6).lines
    assert found[0].startswith(NATIVE)
    for _ in range(20):
        leave_cycle(MANY)
    found = growth_sources({}, before, 1, rise_bytes=20 * MANY * 4).lines
    assert any(f"({MANY},)" in line and "held by C++ only" in line for line in found)
    for o in gc.get_objects():  # the cycles would outlive the test
        if issubclass(type(o), nn.Parameter) and o.shape == (MANY,):
            o.grad = None
