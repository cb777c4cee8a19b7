"""Reported bytes equal the allocated bytes exactly."""

import gc
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from heapwatch.objects.census import Census, Component, Size, measure_components
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn


def census_of(*objects: Any) -> Size:
    return measure_components({"it": Component(objects)}).sizes["it"]


def pinned(census: Census) -> dict[str, int]:
    return {name: size.pinned_bytes for name, size in census.sizes.items()}


@dataclass
class Record:
    observation: np.ndarray
    reward: float


@dataclass(slots=True)
class Slotted:
    tensor: torch.Tensor


class TellTale:
    """Counts calls of methods that an instrument must not call."""

    calls = 0

    def __init__(self) -> None:
        self.held = torch.zeros(10)

    @property
    def computed(self) -> torch.Tensor:
        TellTale.calls += 1
        return torch.zeros(1000)

    def nbytes(self) -> int:
        TellTale.calls += 1
        return 10**9


def test_a_tensor_of_25_mb_counts_25_mb_and_not_80_bytes() -> None:
    assert census_of(torch.zeros(2500, 2500)) == Size(25_000_000, 25_000_000, ("cpu",))


def test_a_view_of_one_row_pins_its_whole_base() -> None:
    episode = np.zeros((500, 64, 64, 3), np.uint8)
    size = census_of([episode[7]])
    assert size.pinned_bytes == 500 * 12_288
    assert size.logical_bytes == 12_288
    detached = census_of(torch.zeros(1000, 1000)[0].detach())
    assert (detached.pinned_bytes, detached.logical_bytes) == (4_000_000, 4_000)


def test_many_views_of_one_base_count_it_once() -> None:
    base = torch.zeros(1000, 250)
    assert census_of([base[row] for row in range(1000)], base) == Size(1_000_000, 1_000_000, ("cpu",))


def test_an_array_and_a_tensor_on_the_same_memory_are_one_storage() -> None:
    array = np.zeros(1000, np.float32)
    assert census_of(array, torch.from_numpy(array)).pinned_bytes == 4000


def test_a_module_counts_parameters_and_buffers_and_a_tied_weight_once() -> None:
    net = nn.Sequential(nn.Linear(100, 100, bias=False), nn.Linear(100, 100, bias=False), nn.BatchNorm1d(100))
    net[1].weight = net[0].weight
    # Weight, bias, mean, variance, and a counter in int64.
    batch_norm = 4 * 100 * 4 + 8
    assert census_of(net).pinned_bytes == 100 * 100 * 4 + batch_norm


def test_adam_holds_two_moments_beside_gradients_and_parameters() -> None:
    net = nn.Linear(1000, 999)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    parameters = 1001 * 999 * 4
    census = measure_components(
        {
            "gradients": Component(tuple(parameter.grad for parameter in net.parameters())),
            "networks": Component((net,)),
            "optimizers": Component((optimizer,)),
        }
    )
    # Adam keeps a float32 step count for both weight and bias.
    steps = 2 * 4
    assert pinned(census) == {
        "gradients": parameters,
        "networks": parameters,
        "optimizers": 2 * parameters + steps,
    }
    assert census.total.pinned_bytes == 4 * parameters + steps


@pytest.mark.parametrize(
    "container",
    [
        lambda: deque(np.zeros(250, np.float32) for _ in range(10)),
        lambda: {"a": [np.zeros(1250, np.float32)], ("b", 1): (np.zeros(1250, np.float32),)},
        lambda: [Record(np.zeros(1000, np.uint8), 1.0) for _ in range(10)],
        lambda: Slotted(torch.zeros(2500)),
        lambda: {"set": {torch.zeros(2500)}},
    ],
    ids=["deque", "dicts", "dataclasses", "slots", "set"],
)
def test_plain_containers_are_reached(container: Any) -> None:
    assert census_of(container()).pinned_bytes == 10_000


def test_parts_are_counted_before_their_whole_which_includes_them() -> None:
    observations, rewards = torch.zeros(1000), torch.zeros(10)
    everything = {"observations": observations, "rewards": rewards, "index": np.zeros(5)}
    census = measure_components(
        {
            "replay": Component((everything,)),
            "networks": Component((torch.zeros(1), observations)),
            "replay/observations": Component((observations,)),
            "replay/observations/first": Component((observations[:1],)),
        }
    )
    assert pinned(census) == {
        "replay": 4080,
        "replay/observations": 4000,
        "replay/observations/first": 4000,
        "networks": 4,
    }
    assert list(census.sizes) == ["replay", "replay/observations", "replay/observations/first", "networks"]
    assert census.total.pinned_bytes == 4084


def test_a_whole_without_objects_is_the_sum_of_its_parts() -> None:
    census = measure_components(
        {
            "networks": Component(),
            "networks/world_model": Component((torch.zeros(100),)),
            "networks/controller": Component((torch.zeros(10),)),
            # In spite of its name, it is not part of another component.
            "network": Component((torch.zeros(1),)),
        }
    )
    assert pinned(census) == {
        "networks": 440,
        "networks/world_model": 400,
        "networks/controller": 40,
        "network": 4,
    }


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20))
def test_the_total_is_every_storage_once_whoever_holds_it(holders: list[tuple[int, int]]) -> None:
    storages = [torch.zeros(10**power, dtype=torch.uint8) for power in range(6)]
    held: dict[int, list[torch.Tensor]] = {owner: [] for owner in range(4)}
    for owner, which in holders:
        held[owner].append(storages[which][-1:])
    names = {0: "a", 1: "a/b", 2: "c", 3: "a/b/d"}
    census = measure_components({names[owner]: Component((tensors,)) for owner, tensors in held.items()})
    expected = sum(10**which for which in {which for _, which in holders})
    assert census.total.pinned_bytes == expected
    assert census.sizes["a"].pinned_bytes + census.sizes["c"].pinned_bytes == expected
    assert sum(census.bytes_by_device.values()) == expected


def test_declared_bytes_count_where_a_walk_finds_less() -> None:
    census = measure_components(
        {
            "native": Component(declared_bytes=5000),
            "seen": Component((torch.zeros(1000),), declared_bytes=3000),
            "on a GPU": Component(declared_bytes=2000, declared_on="cuda"),
        }
    )
    assert pinned(census) == {"native": 5000, "seen": 4000, "on a GPU": 2000}
    assert census.bytes_by_device == {"cpu": 9000, "cuda": 2000}


def test_a_long_container_is_extrapolated_and_says_so() -> None:
    long = [np.zeros(100, np.uint8) for _ in range(5000)]
    census = measure_components({"metrics": Component(({"history": long},))})
    assert census.sizes["metrics"].pinned_bytes == pytest.approx(500_000, rel=0.01)
    assert census.sizes["metrics"].logical_bytes == pytest.approx(500_000, rel=0.01)
    assert census.sampled == ("metrics[0]['history']",)
    base = np.zeros((5000, 100), np.uint8)
    views = measure_components({"views": Component((list(base),))})
    assert views.sizes["views"] == Size(500_000, 500_000, ("cpu",))


def test_a_thousand_objects_of_a_component_are_not_sampled() -> None:
    tensors = tuple(torch.zeros(1 + index % 2) for index in range(3000))
    census = measure_components({"gradients": Component(tensors)})
    assert census.sizes["gradients"].pinned_bytes == 3000 * 6
    assert (census.sampled, census.is_complete) == ((), True)


def test_a_census_that_stops_early_says_that_it_is_incomplete() -> None:
    census = measure_components({"it": Component(([torch.zeros(1) for _ in range(100)],))}, max_objects=50)
    assert not census.is_complete
    assert census.sizes["it"].pinned_bytes < 400


def test_meta_and_empty_tensors_have_no_memory() -> None:
    assert census_of(torch.zeros(1000, device="meta"), torch.zeros(0), np.zeros(0)) == Size(0, 0, ())


def test_no_code_of_the_objects_runs() -> None:
    assert census_of(TellTale()).pinned_bytes == 40
    assert TellTale.calls == 0


def test_names_with_dots_and_brackets_are_names() -> None:
    census = measure_components({"a.b[0]": Component((torch.zeros(1),)), "a": Component((torch.zeros(2),))})
    assert pinned(census) == {"a.b[0]": 4, "a": 8}


def test_a_census_keeps_nothing_alive() -> None:
    tensor = torch.zeros(1000)
    gone = weakref.ref(tensor)
    census = measure_components({"it": Component(({"x": [tensor]},))})
    del tensor
    gc.collect()
    assert gone() is None
    assert census.sizes["it"].pinned_bytes == 4000


@pytest.mark.gpu
def test_devices_are_counted_separately() -> None:
    census = measure_components({"it": Component((torch.zeros(100), torch.zeros(200, device="cuda")))})
    assert census.sizes["it"].devices == ("cpu", "cuda:0")
    assert census.bytes_by_device == {"cpu": 400, "cuda:0": 800}
