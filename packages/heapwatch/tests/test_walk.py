import collections
import functools
import gc
import itertools
import logging
import queue
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from heapwatch.objects.graph_holders import find_graph_holders, first_graph
from heapwatch.objects.readers import SAMPLE, Children
from heapwatch.objects.walk import walk
from torch import Tensor, nn


@dataclass(slots=True)
class Slotted:
    deter: Tensor


class Attributes:
    def __init__(self, value: Any) -> None:
        self.value = value


class Shadowed:
    """Hides its attributes behind a property named `__dict__`."""

    __dict__ = property(lambda self: pytest.fail("a property ran"))  # type: ignore[assignment]


def shadowed(value: Any) -> Shadowed:
    o = Shadowed()
    object.__setattr__(o, "value", value)
    return o


def default(value: object) -> object:
    def collect(number: int, found: object = value) -> None: ...

    return collect


def closure(value: Any) -> Callable[[], Any]:
    return lambda: value


def generator(value: Any) -> Iterator[int]:
    yield len(value)
    yield 0


def started(value: Any) -> Iterator[int]:
    running = generator(value)
    next(running)
    return running


def raised(value: Any) -> Exception:
    def boom(local: Any) -> None:
        raise RuntimeError("boom")

    try:
        boom(value)
    except RuntimeError as error:
        return error
    raise AssertionError


def cached(value: Any) -> Any:
    made = [value]
    cache = functools.lru_cache(lambda step: made.pop())
    cache(3)
    return cache


def simple_queue(value: Any) -> queue.SimpleQueue[Any]:
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    waiting.put(value)
    return waiting


def module(value: Any) -> nn.Module:
    net = nn.Sequential(nn.Identity())
    net[0].register_forward_hook(lambda *_: value)
    return net


def tensor_with(value: Any) -> Tensor:
    tensor = torch.zeros(())
    tensor.extra = value  # type: ignore[attr-defined]
    return tensor


def with_gradient(value: Tensor) -> Tensor:
    parameter = nn.Parameter(torch.zeros_like(value))
    parameter.grad = value
    return parameter


class Repeated(itertools.repeat):
    """Has a field in C and a `__dict__`, like the blocks of a pandas table."""


def object_array(value: Any) -> np.ndarray:
    array = np.empty(2, object)
    array[1] = value
    return array


PLACES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda v: [0, v], "[1]"),
    (lambda v: (v,), "[0]"),
    (lambda v: {"x": [v]}, "['x'][0]"),
    (lambda v: {3: v}, "[3]"),
    (lambda v: {("a", 1): v}, "[('a', 1)]"),
    (lambda v: collections.OrderedDict(x=v), "['x']"),
    (lambda v: collections.deque([v]), "[0]"),
    (lambda v: {v}, ".<set 0>"),
    (lambda v: {v: 1}, ".<key 0>"),
    (Attributes, ".value"),
    (Slotted, ".deter"),
    (shadowed, ".<Shadowed 0>"),
    (lambda v: SimpleNamespace(a=SimpleNamespace(b=v)), ".a.b"),
    (closure, ".<closure value>"),
    (lambda v: functools.partial(print, v, end=v), ".args[0]"),
    (lambda v: [v].append, ".__self__[0]"),
    (lambda v: types.MethodType(print, Attributes(v)), ".__self__.value"),
    (default, ".<default found>"),
    (lambda v: types.CellType(v), ".<cell 0>"),
    (started, ".gi_frame.<local generator:value>"),
    (raised, ".<traceback raised:value>"),
    (lambda v: raised(v).__traceback__, ".<traceback raised:value>"),
    (cached, ".<cache>[2]"),
    (simple_queue, ".<SimpleQueue 0>[0]"),
    (module, ".0._forward_hooks[*].<closure value>"),
    (tensor_with, ".extra"),
    (with_gradient, ".grad"),
    (object_array, "[1]"),
    (lambda v: types.MappingProxyType({"x": v}), ".<mappingproxy 0>['x']"),
    (lambda v: iter([v]), ".<list_iterator 0>[0]"),
    (Repeated, ".<Repeated 2>"),
]


@pytest.mark.parametrize(("make", "path"), PLACES, ids=[path for _, path in PLACES])
def test_a_tensor_is_found_by_a_path_that_leads_back_to_it(make: Callable[[Any], Any], path: str) -> None:
    target = torch.zeros(7)
    roots = {"root": make(target)}
    leaves = [leaf for leaf in walk(roots).leaves if leaf.value is target]
    assert len(leaves) == 1
    assert _without_handles(leaves[0].path) == f"root{path}"
    assert _at(roots, leaves[0].path) is target


def _at(roots: dict[str, Any], path: str) -> Any:
    """Return the object at a path of `walk`."""
    steps, children = [*roots.items()], Children()
    while True:
        step, value = max((pair for pair in steps if path.startswith(pair[0])), key=lambda pair: len(pair[0]))
        path = path.removeprefix(step)
        if not path:
            return value
        steps = [(step, child) for read in children.kind_of(value).readers for step, child, _ in read(value)]


def _without_handles(path: str) -> str:
    return (
        path if "hooks[" not in path else path[: path.index("hooks[")] + "hooks[*]" + path.rpartition("]")[2]
    )


def test_parameters_buffers_and_submodules_have_the_names_they_are_used_by() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    paths = [leaf.path.removeprefix("net.") for leaf in walk({"net": net}).leaves]
    assert sorted(paths) == sorted(net.state_dict())


def test_elements_of_a_growing_list_have_one_pattern() -> None:
    found = walk({"w": SimpleNamespace(store=[{"x": torch.zeros(1)}, {"x": torch.zeros(1)}])})
    assert [(leaf.path, leaf.pattern) for leaf in found.leaves] == [
        ("w.store[0]['x']", "w.store[*]['x']"),
        ("w.store[1]['x']", "w.store[*]['x']"),
    ]


def test_shared_memory_counts_once_at_its_first_owner() -> None:
    shared = torch.zeros(2)
    found = walk({"replay": [shared], "means": {"last": shared}})
    assert [leaf.path for leaf in found.leaves] == ["replay[0]"]


def test_cycles_and_deep_nests_end() -> None:
    nest: list[Any] = [torch.zeros(1)]
    for _ in range(50_000):
        nest = [nest]
    cycle: dict[str, Any] = {"nest": nest}
    cycle["self"] = [cycle, {"again": cycle}]
    found = walk({"cycle": cycle})
    assert len(found.leaves) == 1 and not found.truncated


def test_modules_classes_loggers_and_files_are_not_entered() -> None:
    class Holder:
        tensor = torch.zeros(1)

    this_module = sys.modules[__name__] if __name__ in sys.modules else types.ModuleType("m")
    logger = logging.getLogger("reverie.test_walk")
    logger.extra = torch.zeros(1)  # type: ignore[attr-defined]
    with open(__file__) as file:
        found = walk({"roots": [this_module, Holder, torch, logger, file, weakref.ref(Holder)]})
    assert found.leaves == [] and found.objects == 7


def test_a_list_of_a_million_arrays_is_walked_by_a_sample_that_keeps_its_total() -> None:
    arrays = [np.zeros(1, np.uint8) for _ in range(1000)]
    found = walk({"store": arrays * 1000})
    assert found.objects <= 1 + SAMPLE
    distinct = walk({"store": [np.zeros(1, np.uint8) for _ in range(100_000)]})
    assert distinct.objects == 1 + SAMPLE and distinct.sampled == ["store"]
    assert sum(leaf.weight for leaf in distinct.leaves) == pytest.approx(100_000)
    assert distinct.leaves[-1].path == "store[99999]"


@pytest.mark.parametrize("make", [list, tuple, collections.deque, set, dict.fromkeys])
def test_a_million_numbers_are_no_objects(make: Callable[[Any], Any]) -> None:
    assert walk({"store": make(range(1_000_000))}).objects == 1


def test_the_last_element_is_in_every_sample() -> None:
    for length in (SAMPLE + 1, 70_001, 1_000_003):
        last = torch.zeros(1)
        store: list[Any] = [0.0] * (length - 1) + [last]
        assert [leaf.path for leaf in walk({"store": store}).leaves] == [f"store[{length - 1}]"]
        assert _at({"store": store}, f"store[{length - 1}]") is last


@pytest.mark.parametrize("kind", [list, dict, collections.deque, set])
def test_a_container_that_always_changes_is_walked(kind: type) -> None:
    tensors = [torch.zeros(1) for _ in range(100)]
    changing: Any = kind(dict.fromkeys(tensors))
    add = {list: "append", dict: "setdefault", collections.deque: "append", set: "add"}[kind]

    # JAX also runs Python code at each garbage collection, and threads switch there.
    def change(*_: Any) -> None:
        getattr(changing, add)(object())

    threshold = gc.get_threshold()
    gc.callbacks.append(change)
    gc.set_threshold(1)
    try:
        found = walk({"changing": changing})
    finally:
        gc.callbacks.remove(change)
        gc.set_threshold(*threshold)
    assert {id(leaf.value) for leaf in found.leaves} == set(map(id, tensors))


def test_a_walk_stops_at_its_limit_and_says_so() -> None:
    found = walk({"store": [[i] for i in range(100)]}, max_objects=10)
    assert found.truncated and found.objects == 10


CALLS: list[str] = []


def _spy(name: str) -> Callable[..., Any]:
    def called(*_: Any, **__: Any) -> Any:
        CALLS.append(name)
        raise RuntimeError(f"{name} ran")

    return called


class HostileType(type):
    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = _spy("of the metaclass")  # type: ignore[assignment]
    __getattribute__ = __repr__ = __call__ = _spy("of the metaclass")  # type: ignore[assignment]
    __name__ = __module__ = __mro__ = property(_spy("property of the metaclass"))  # type: ignore[assignment]


def hostile(value: Any) -> Any:
    """Return an object that references `value`. Its protocol methods count their calls and raise."""
    names = ["__getattr__", "__getattribute__", "__iter__", "__len__", "__getitem__", "__eq__", "__repr__"]
    names += ["__str__", "__bool__", "__contains__", "__format__", "__call__", "__del__", "__sizeof__"]
    names += ["__reduce_ex__", "__dir__", "__get__", "__instancecheck__", "__index__"]
    members: dict[str, Any] = {name: _spy(name) for name in names if name != "__del__"}
    members |= {"__class__": property(_spy("__class__")), "state": property(_spy("a property"))}
    members["__hash__"] = lambda self: CALLS.append("__hash__") or 7
    o = object.__new__(type.__new__(HostileType, "Hostile", (), members))
    object.__setattr__(o, "held", value)
    return o


def test_hostile_objects_are_walked_and_none_of_their_code_runs() -> None:
    values = [(torch.ones(1, requires_grad=True) * 2) for _ in range(4)]
    keyed, member = hostile(values[1]), hostile(values[2])
    roots = {"plain": [hostile(values[0])], "keyed": {keyed: values[3]}, "set": {member}}
    CALLS.clear()
    paths = [leaf.path for leaf in walk(roots).leaves]
    report, first = find_graph_holders(roots), first_graph(roots)
    assert CALLS == []
    assert paths == ["plain[0].held", "keyed[<Hostile 0>]", "keyed.<key 0>.held", "set.<set 0>.held"]
    assert first == "plain[0].held" and sum(holder.num_paths for holder in report.holders) == 4


def test_a_tensor_subclass_is_read_without_its_torch_function() -> None:
    class Nosy(Tensor):
        @classmethod
        def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
            CALLS.append("__torch_function__")
            return super().__torch_function__(*args, **kwargs)

        @property
        def grad_fn(self) -> Any:  # type: ignore[override]
            CALLS.append("grad_fn")

    nosy = (torch.ones(1, requires_grad=True) * 2).as_subclass(Nosy)
    CALLS.clear()
    assert [holder.paths for holder in find_graph_holders({"x": [nosy]}).holders] == [("x[0]",)]
    assert CALLS == []


def test_reading_local_variables_keeps_none_of_them_alive() -> None:
    class Local:
        pass

    def generate() -> Iterator[Any]:
        first = Local()
        yield weakref.ref(first)
        del first
        yield None

    running = generate()
    reference = next(running)
    for _ in range(2):
        assert walk({"running": running}).objects > 1
    next(running)
    assert reference() is None


def test_a_dictionary_of_locals_that_somebody_holds_is_not_emptied() -> None:
    def generate() -> Iterator[dict[str, Any]]:
        kept = 3.0
        yield locals()
        yield {"kept": kept}

    running = generate()
    names = next(running)
    walk({"running": running})
    assert names == {"kept": 3.0}


def test_a_walk_within_a_trace_function_unbinds_no_variable() -> None:
    def tracer(frame: types.FrameType, event: str, argument: Any) -> Any:
        assert walk({"frame": frame}).objects
        return tracer

    def summed(most: int) -> int:
        total = 0
        for number in range(most):
            total += number
        return total

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        found = summed(3)
    finally:
        sys.settrace(before)
    assert found == 3


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="objects have no dictionary of their own any more")
def test_records_of_numbers_get_no_dictionary_from_being_walked() -> None:
    record = Attributes(3)
    walk({"record": record})
    assert not any(type(held) is dict for held in gc.get_referents(record))


def test_nothing_that_was_walked_is_kept_alive() -> None:
    class Tracked:
        pass

    o = Tracked()
    o.tensor = torch.zeros(3)  # type: ignore[attr-defined]
    references = [weakref.ref(o), weakref.ref(o.tensor)]  # type: ignore[attr-defined]
    roots = {"o": [o]}
    assert first_graph(roots) is None and find_graph_holders(roots).holders == ()
    walk(roots)
    del o, roots
    gc.collect()
    assert [reference() for reference in references] == [None, None]
