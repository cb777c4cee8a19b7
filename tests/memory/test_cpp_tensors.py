import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reverie.memory.objects.graph_holders import GraphReport
from reverie.memory.objects.orphans import cpp_held, orphan_heads

GLOBAL_TRACE: list[Any] = []
LAST_HOOK: list[Callable[[], Tensor]] = []


class Agent:
    cache: dict[str, Tensor] = {}  # noqa: RUF012 - the mistake that is looked for


def owners(report: GraphReport) -> list[str]:
    """Return the owners of this file's making."""
    return sorted(anchor.owner for anchor in report.anchors if "test_orphans" in anchor.owner)


def setup_function() -> None:
    GLOBAL_TRACE.clear()
    LAST_HOOK.clear()
    Agent.cache.clear()


def trace(weight: nn.Parameter, count: int) -> None:
    GLOBAL_TRACE.extend({"x": weight.exp()} for _ in range(count))


def test_a_list_in_a_module_that_no_root_reaches_is_named() -> None:
    weight = nn.Parameter(torch.ones(1000))
    trace(weight, 3)
    report = orphan_heads({"weight": weight})
    assert owners(report) == [f"module {__name__}.GLOBAL_TRACE[*]['x']"]
    anchor = next(a for a in report.anchors if "GLOBAL_TRACE" in a.owner)
    assert anchor.paths[1] == f"module {__name__}.GLOBAL_TRACE[1]['x']"
    assert anchor.num_paths == 3 and anchor.nbytes == 3 * 4000
    GLOBAL_TRACE.clear()
    assert owners(orphan_heads({"weight": weight})) == []


def test_what_a_root_reaches_is_no_orphan() -> None:
    weight = nn.Parameter(torch.ones(10))
    trace(weight, 3)
    assert owners(orphan_heads({"weight": weight, "trace": GLOBAL_TRACE})) == []


def test_an_attribute_of_a_class_and_a_closure_are_named() -> None:
    weight = nn.Parameter(torch.ones(10))

    def fill() -> None:
        Agent.cache["loss"] = weight.sin()
        z = weight.cos()
        LAST_HOOK.append(lambda: z)

    fill()
    report = orphan_heads({"weight": weight})
    assert owners(report) == [
        f"class {__name__}.Agent.cache['loss']",
        f"module {__name__}.LAST_HOOK[*].<function>[*].<cell>",
    ]


def test_a_variable_of_a_running_function_is_named() -> None:
    weight = nn.Parameter(torch.ones(10))
    losses = [weight.exp()]
    names = [anchor.paths[0] for anchor in orphan_heads({"weight": weight}).anchors]
    assert [name.split(" ", 2)[2] for name in names if "running_function" in name] == ["losses[0]"]
    del losses


def test_only_the_end_of_a_graph_is_reported() -> None:
    weight = nn.Parameter(torch.ones(10))
    inner = weight.exp()
    GLOBAL_TRACE.append([inner, inner.sin()])
    del inner
    paths = [path for anchor in orphan_heads({"weight": weight}).anchors for path in anchor.paths]
    assert [path for path in paths if "GLOBAL_TRACE" in path] == [f"module {__name__}.GLOBAL_TRACE[0][1]"]


@pytest.mark.filterwarnings(r"ignore:Using backward\(\) with create_graph=True")
def test_parameters_in_a_cycle_with_their_gradients_are_held_by_cpp() -> None:
    def step() -> None:
        parameter = nn.Parameter(torch.zeros(2017))
        (parameter**3).sum().backward(create_graph=True)

    for _ in range(10):
        step()
    gc.collect()
    rows = [row for row in cpp_held({}, limit=10_000) if row.shape == (2017,) and row.is_cycle]
    assert [(row.kind, row.count, row.nbytes) for row in rows] == [("Parameter", 10, 10 * 2017 * 4)]
    assert rows[0].text() == (
        "10 x Parameter (2017,) from leaf, 0.1 MB, held by C++ only: grad has grad_fn, a create_graph cycle"
    )
    for o in gc.get_objects():  # the cycles would outlive the test
        if issubclass(type(o), nn.Parameter) and o.shape == (2017,):
            o.grad = None
    assert [row for row in cpp_held({}, limit=10_000) if row.shape == (2017,)] == []


def test_what_python_holds_is_not_held_by_cpp() -> None:
    kept = [torch.zeros(2018)]
    local = torch.zeros(2019)
    assert [row for row in cpp_held({}, limit=10_000) if row.shape in ((2018,), (2019,))] == []
    assert len(kept) == 1 and local.ndim == 1


def test_the_search_through_all_objects_runs_none_of_their_code() -> None:
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
    kept[0].trace = GLOBAL_TRACE  # type: ignore[attr-defined]
    calls.clear()
    orphan_heads({"weight": weight})
    cpp_held({"weight": weight})
    assert calls == []


def test_the_search_keeps_nothing_alive() -> None:
    weight = nn.Parameter(torch.ones(10))
    trace(weight, 2)
    reference = weakref.ref(GLOBAL_TRACE[1]["x"])
    orphan_heads({"weight": weight})
    cpp_held({"weight": weight})
    GLOBAL_TRACE.clear()
    gc.collect()
    assert reference() is None
