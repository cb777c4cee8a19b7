import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from heapwatch.objects.graph_holders import GraphHolder
from heapwatch.objects.heap import measure_heap
from torch import Tensor, nn

from .fresh import in_a_fresh_process

pytestmark = pytest.mark.usefixtures("thawed")
GLOBAL_TRACE: list[Any] = []
LAST_HOOK: list[Callable[[], Tensor]] = []


class Agent:
    cache: dict[str, Tensor] = {}  # noqa: RUF012 - the mistake that is looked for


def graphs(roots: dict[str, Any]) -> list[GraphHolder]:
    """Return the graphs created by this file."""
    found = measure_heap(roots, is_whole=False).graphs.holders
    return sorted((each for each in found if "test_heap_graphs" in each.pattern), key=lambda g: g.pattern)


def setup_function() -> None:
    GLOBAL_TRACE.clear()
    LAST_HOOK.clear()
    Agent.cache.clear()


def trace(weight: nn.Parameter, count: int) -> None:
    GLOBAL_TRACE.extend({"x": weight.exp()} for _ in range(count))


def test_a_list_in_a_module_that_no_root_reaches_is_named() -> None:
    weight = nn.Parameter(torch.ones(1000))
    trace(weight, 3)
    [holder] = graphs({"weight": weight})
    assert holder.pattern == f"module {__name__}.GLOBAL_TRACE[*]['x']"
    assert holder.paths[1] == f"module {__name__}.GLOBAL_TRACE[1]['x']"
    assert holder.num_paths == 3 and holder.nbytes == 3 * 4000
    GLOBAL_TRACE.clear()
    assert graphs({"weight": weight}) == []


def test_of_one_graph_a_container_is_named_before_the_variables_of_this_step() -> None:
    weight = nn.Parameter(torch.ones(10))
    GLOBAL_TRACE.append(weight.exp())
    loss = GLOBAL_TRACE[0].sum()
    held = measure_heap({"weight": weight}, is_whole=False).graphs.holders
    [holder] = [each for each in held if loss.requires_grad and "GLOBAL_TRACE" in str(each.paths)]
    assert holder.paths[0] == f"module {__name__}.GLOBAL_TRACE[0]"
    assert holder.paths[1].startswith("frame test_of_one_graph")


def test_what_a_root_reaches_has_the_name_of_the_root() -> None:
    weight = nn.Parameter(torch.ones(10))
    trace(weight, 3)
    assert graphs({"weight": weight, "trace": GLOBAL_TRACE}) == []


def test_an_attribute_of_a_class_and_a_closure_are_named() -> None:
    weight = nn.Parameter(torch.ones(10))

    def fill() -> None:
        Agent.cache["loss"] = weight.sin()
        z = weight.cos()
        LAST_HOOK.append(lambda: z)

    fill()
    assert [holder.pattern for holder in graphs({"weight": weight})] == [
        f"class {__name__}.Agent.cache['loss']",
        f"module {__name__}.LAST_HOOK[*].<closure z>",
    ]


def test_a_variable_of_a_running_function_is_named() -> None:
    weight = nn.Parameter(torch.ones(10))
    losses = [weight.exp()]
    paths = [holder.paths[0] for holder in measure_heap({"weight": weight}, is_whole=False).graphs.holders]
    assert "frame test_a_variable_of_a_running_function_is_named losses[0]" in paths
    del losses


def search_for_cycles_of_cpp() -> None:
    """Leave cycles that only C++ references and tensors that Python references, and check the search."""

    def step() -> None:
        parameter = nn.Parameter(torch.zeros(2017))
        (parameter**3).sum().backward(create_graph=True)

    # torch warns about create_graph.
    warnings.simplefilter("ignore")
    kept, local = [torch.zeros(2018)], torch.zeros(2019)
    for _ in range(10):
        step()
    held = measure_heap({}, is_whole=True).held["cpu"]
    rows = {path: nbytes for path, nbytes in held.items() if "(201" in path}
    cycle = "<Parameter (2017,) from leaf, whose grad has grad_fn: a create_graph cycle, held by C++ only>"
    assert rows == {cycle: 10 * 2017 * 4, f"{cycle}.grad": 10 * 2017 * 4}, rows
    assert len(kept) == 1 and local.ndim == 1


def test_parameters_in_a_cycle_with_their_gradients_are_held_by_cpp_and_what_python_holds_is_not() -> None:
    in_a_fresh_process(search_for_cycles_of_cpp)


def search_hostile_objects() -> None:
    """Search objects that count attribute accesses, and a graph that is then released."""
    calls: list[str] = []

    class Proxy:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            calls.append("__class__")
            return Tensor

        def __getattr__(self, name: str) -> None:
            calls.append(name)

    kept, weight = [Proxy()], nn.Parameter(torch.ones(10))
    trace(weight, 2)
    reference = weakref.ref(GLOBAL_TRACE[1]["x"])
    kept[0].trace = GLOBAL_TRACE  # type: ignore[attr-defined]
    calls.clear()
    measure_heap({"weight": weight}, is_whole=True)
    assert calls == []
    GLOBAL_TRACE.clear()
    gc.collect()
    assert reference() is None


def test_the_search_through_all_objects_runs_none_of_their_code_and_keeps_nothing_alive() -> None:
    in_a_fresh_process(search_hostile_objects)
