"""The heap by path: each way to reference memory appears in bytes under a readable name."""

import array
import asyncio
import collections
import contextvars
import ctypes
import functools
import json
import mmap
import threading
import time
import types
import warnings
import weakref
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heapwatch.objects.growth import ELSEWHERE, NATIVE, TOO_SMALL, Heap, growing_container, sources_of
from heapwatch.objects.heap import growth_sources, measure_heap
from torch import nn

from .fresh import in_a_fresh_process

pytestmark = pytest.mark.usefixtures("thawed")
MB = 1_000_000
KEPT: dict[str, Any] = {}


@dataclass(slots=True)
class Slotted:
    value: Any
    next: Any = None


class Owner:
    shared: list[Any] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.text = "x" * MB
        self.more = Slotted(None)


@functools.lru_cache(maxsize=8)
def cached(number: int) -> bytes:
    return bytes(MB)


def linked_list() -> Slotted:
    first = Slotted(None)
    for _ in range(1000):
        first = Slotted(np.ones(MB // 1000, np.uint8), first)
    return first


def generator() -> Iterator[int]:
    def run() -> Iterator[int]:
        frame = np.ones(MB, np.uint8)
        yield frame.nbytes

    started = run()
    next(started)
    return started


def exception() -> ValueError:
    frame = np.ones(MB, np.uint8)
    try:
        raise ValueError(frame.nbytes)
    except ValueError as error:
        return error


def touched_map() -> mmap.mmap:
    block = mmap.mmap(-1, MB)
    block.write(bytes(MB))
    return block


HOLDERS: dict[str, tuple[Callable[[], Any], str]] = {
    "array": (lambda: [np.ones(MB, np.uint8)], "[*]"),
    "tensor": (lambda: [torch.ones(MB, dtype=torch.uint8)], "[*]"),
    "view": (lambda: [np.ones((10, MB // 10), np.uint8)[0]], "[*]"),
    "text": (lambda: ["x" * MB], ""),
    "floats": (lambda: [float(i) for i in range(MB // 32)], ""),
    "numbers": (lambda: array.array("b", bytes(MB)), ""),
    "map": (lambda: [touched_map()], "[*]"),
    "buffer": (lambda: [ctypes.create_string_buffer(MB)], "[*]"),
    "method": (lambda: [bytes(MB)].append, ".__self__"),
    "dict": (lambda: {7: {"obs": np.ones(MB, np.uint8)}}, "[*]['obs']"),
    "deque": (lambda: collections.deque([bytes(MB)]), ""),
    "instance": (Owner, ""),
    "generator": (generator, ".gi_frame.<local run:frame>"),
    "exception": (exception, ".<traceback exception:frame>"),
    "list of links": (linked_list, ".next.next"),
}
"""Holders of a megabyte, with their path."""


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    KEPT.clear()
    Owner.shared.clear()
    cached.cache_clear()


def grown(before: Heap, after: Heap) -> dict[str, float]:
    held = before.held["cpu"]
    found = {path: nbytes - held.get(path, 0.0) for path, nbytes in after.held["cpu"].items()}
    return {path: nbytes for path, nbytes in found.items() if nbytes > 0.1 * MB}


def test_what_is_held_counts_once_under_the_name_of_its_holder() -> None:
    before = measure_heap({}, is_whole=False)
    KEPT.update({holder: hold() for holder, (hold, _) in HOLDERS.items()})
    Owner.shared.append(np.ones(MB, np.uint8))
    cached(1)
    after = measure_heap({}, is_whole=False)
    found = grown(before, after)
    expected = {f"module {__name__}.KEPT['{holder}']": path for holder, (_, path) in HOLDERS.items()}
    expected |= {f"class {__name__}.Owner.shared": "[*]", f"module {__name__}.cached": ""}
    for start, path in expected.items():
        held = {each: nbytes for each, nbytes in found.items() if each.startswith(start)}
        assert held and all(each.startswith(start + path) for each in held), (start, found)
        assert sum(held.values()) == pytest.approx(MB, rel=0.1), (start, held)
    assert after.totals["cpu"] - before.totals["cpu"] == pytest.approx(MB * len(expected), rel=0.05)


def test_a_local_variable_of_another_thread_is_named_by_its_function() -> None:
    begin, ready, done = threading.Event(), threading.Event(), threading.Event()

    def collect() -> None:
        gathered: list[bytes] = []
        begin.wait()
        gathered.append(bytes(MB))
        ready.set()
        done.wait()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    before = measure_heap({}, is_whole=False)
    begin.set()
    ready.wait()
    found = grown(before, measure_heap({}, is_whole=False))
    done.set()
    thread.join()
    assert list(found) == ["frame collect gathered"]


@types.coroutine
def pause() -> Generator[None]:
    yield


async def wait_for_frames() -> None:
    gathered: list[bytes] = []
    while True:
        gathered.append(bytes(MB))
        await pause()


def make_frames() -> Iterator[None]:
    gathered: list[bytes] = []
    while True:
        gathered.append(bytes(MB))
        yield


@pytest.mark.parametrize("start", [lambda: wait_for_frames().__await__(), make_frames])
def test_a_local_variable_of_a_waiting_function_is_named_by_it(start: Callable[[], Iterator[None]]) -> None:
    # Only `zip` references the generator or the coroutine.
    (_, before), (_, after) = zip(start(), map(measure_heap, [{}] * 2, [False] * 2), strict=False)
    name = "make_frames" if start is make_frames else "wait_for_frames"
    assert list(grown(before, after)) == [f"frame {name} gathered"]


def test_an_event_loop_gives_its_name_to_nothing_that_has_another() -> None:
    loop = asyncio.new_event_loop()
    KEPT["connection"] = [loop]

    def measured_after_a_step() -> Heap:
        loop.call_soon(loop.stop)
        loop.run_forever()
        return measure_heap({}, is_whole=False)

    tasks = weakref.WeakSet([loop.create_task(wait_for_frames())])
    before, after = measured_after_a_step(), measured_after_a_step()
    assert list(grown(before, after)) == ["frame wait_for_frames gathered"]
    for task in tasks:
        task.cancel()
    measured_after_a_step()
    loop.close()


def test_the_value_of_a_context_variable_is_named_by_it() -> None:
    variable = contextvars.ContextVar[list[bytes]]("gathered")
    variable.set([])
    before = measure_heap({}, is_whole=False)
    variable.get().append(bytes(MB))
    assert list(grown(before, measure_heap({}, is_whole=False))) == ["contextvar gathered"]


def test_what_a_traceback_reaches_has_a_shorter_name_if_there_is_one() -> None:
    KEPT["errors"], KEPT["frames"] = [], []

    def fail(frames: list[bytes]) -> None:
        raise ValueError(len(frames))

    before = measure_heap({}, is_whole=False)
    KEPT["frames"].append(bytes(MB))
    try:
        fail(KEPT["frames"])
    except ValueError as error:
        KEPT["errors"].append(error)
    assert list(grown(before, measure_heap({}, is_whole=False))) == [f"module {__name__}.KEPT['frames']"]


def test_an_attribute_of_a_thread_is_named_by_its_local() -> None:
    KEPT["local"] = threading.local()
    KEPT["local"].requests = []
    before = measure_heap({}, is_whole=False)
    KEPT["local"].requests.append(bytes(MB))
    found = grown(before, measure_heap({}, is_whole=False))
    assert list(found) == [f"module {__name__}.KEPT['local'].requests"]


@pytest.mark.parametrize(("share", "first"), [(0.1, "always"), (1.0, "until it is emptied")])
def test_a_container_that_is_emptied_again_comes_after_one_that_always_grows(
    share: float, first: str
) -> None:
    KEPT["until it is emptied"], KEPT["always"] = [], [bytes(MB) for _ in range(8)]
    before = measure_heap({}, is_whole=False)
    # If a tenth of the judged steps adds 3 MB to a container, and it has always grown, it holds 30 MB.
    KEPT["always"].append(bytes(MB))
    KEPT["until it is emptied"] += [bytes(MB) for _ in range(3)]
    now = measure_heap({}, is_whole=False, before=before, share=share)
    found = sources_of(before, now, 1, 4 * MB)
    assert f"KEPT['{first}'] holds" in found.lines[0], found.lines
    assert found.messages[0].owner.endswith(f"KEPT['{first}']"), found.messages


def test_a_dict_of_names_that_always_grows_comes_before_a_list_that_is_emptied() -> None:
    names = "ABCDEFGHIJKLMNOPQRST"
    KEPT["by name"], KEPT["until it is emptied"] = {name: bytes(MB) for name in names[:16]}, []
    before = measure_heap({}, is_whole=False)
    KEPT["by name"] |= {name: bytes(MB) for name in names[16:]}
    KEPT["until it is emptied"] += [bytes(MB) for _ in range(5)]
    now = measure_heap({}, is_whole=False, before=before, share=0.2)
    found = sources_of(before, now, 1, 9 * MB)
    assert "KEPT['by name']" in found.lines[0], found.lines
    assert found.messages[0].owner.endswith("KEPT['by name']"), found.messages


def test_a_leak_that_has_just_started_is_named() -> None:
    KEPT["late"] = []
    before = measure_heap({}, is_whole=False)
    KEPT["late"] += [bytes(MB // 20) for _ in range(4)]
    for share in (0.0, 0.01):
        now = measure_heap({}, is_whole=False, before=before, share=share)
        assert "KEPT['late'] holds" in sources_of(before, now, 1, MB / 5).lines[0]


class Connections(threading.local):
    def __init__(self, table: list[bytes]) -> None:
        pass


def test_the_arguments_of_a_thread_local_have_a_name() -> None:
    table: list[bytes] = []
    KEPT["local"] = Connections(table)
    before = measure_heap({}, is_whole=False)
    table.append(bytes(MB))
    del table
    [path] = grown(before, measure_heap({}, is_whole=False))
    assert path.startswith(f"module {__name__}.KEPT['local'].<Connections *>"), path


def test_what_the_roots_reach_counts_under_their_names() -> None:
    loop = Owner()
    before = measure_heap({"loop": loop}, is_whole=False)
    KEPT["loop"] = loop
    loop.more.value = [np.ones(MB, np.uint8)]
    assert list(grown(before, measure_heap({"loop": loop}, is_whole=False))) == ["loop.more.value[*]"]


def measured_twice() -> tuple[Heap, Heap]:
    class Hostile:
        def __sizeof__(self) -> int:
            raise AssertionError("asked for its size")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    KEPT["hostile"] = Hostile()
    return measure_heap({}, is_whole=False), measure_heap({}, is_whole=False)


def test_measuring_again_finds_the_same_and_runs_no_code_of_what_it_visits() -> None:
    first, second = in_a_fresh_process(measured_twice)
    assert first.held == second.held


def leave_cycles(size: int) -> None:
    """Leave 20 pairs of parameters and gradients that keep each other alive, only through C++."""
    for _ in range(20):
        parameter = nn.Parameter(torch.zeros(size))
        (parameter**3).sum().backward(create_graph=True)


def c_library() -> ctypes.CDLL:
    found = ctypes.CDLL(None)
    found.malloc.restype = ctypes.c_void_p
    found.free.argtypes = [ctypes.c_void_p]
    return found


def search_everything() -> None:
    """Let a library, a module and C++ retain memory in turn, and check the reported names."""
    # torch warns about create_graph.
    warnings.simplefilter("ignore")
    library = c_library()
    # These existed before the growth, so they must not be blamed.
    leave_cycles(4001)
    before = measure_heap({}, is_whole=True)
    library.malloc(MB)
    found = growth_sources({}, before, 1, MB)
    assert found.is_named and [line.startswith(NATIVE) for line in found.lines] == [True], found.lines
    json.forgotten = [bytes(MB)]  # type: ignore[attr-defined]
    leave_cycles(4001)
    found = growth_sources({}, before, 1, MB)
    assert found.is_named, found.lines
    assert found.lines[0].startswith("module json.forgotten holds 1.00 MB more"), found.lines
    assert any("(4001,)" in line and "held by C++ only" in line for line in found.lines), found.lines


def test_the_whole_heap_tells_libraries_and_what_cpp_holds_from_native_memory() -> None:
    in_a_fresh_process(search_everything)


def keep_c_objects() -> tuple[str, ...]:
    before = measure_heap({}, is_whole=True)
    # Each has a quarter of a megabyte that the garbage collector does not count.
    KEPT["compressors"] = [zlib.compressobj() for _ in range(8)]
    return growth_sources({}, before, 1, 2 * MB).lines


def test_memory_behind_c_objects_is_not_said_to_have_no_holder() -> None:
    [line] = in_a_fresh_process(keep_c_objects)
    assert line.startswith(
        "not seen in Python's heap: native memory of a library or an extension (the Python"
    )


def test_growth_outside_user_code_leads_to_a_search_of_libraries() -> None:
    before = measure_heap({}, is_whole=False)
    try:
        json.forgotten = [bytes(MB)]  # type: ignore[attr-defined]
        found = growth_sources({}, before, 1, MB)
    finally:
        del json.forgotten  # type: ignore[attr-defined]
    assert found.lines == (ELSEWHERE,) and not found.is_named


def test_a_library_of_another_environment_is_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "installed_elsewhere.py").write_text("cache = [bytes(1_000_000)]\n")
    monkeypatch.syspath_prepend(folder)
    import_module("installed_elsewhere")
    held = (measure_heap({}, is_whole).held["cpu"] for is_whole in (False, True))
    assert [any(path.startswith("module installed_elsewhere") for path in each) for each in held] == [
        False,
        True,
    ]


def test_growth_below_what_can_be_told_from_noise_is_too_small_to_name_yet() -> None:
    before = measure_heap({}, is_whole=False)
    KEPT["small"] = bytes(2_000)
    found = growth_sources({}, before, 1, 2_000)
    assert not found.is_named and found.lines == (TOO_SMALL,)


def test_a_small_graph_is_not_blamed_for_native_memory() -> None:
    library = c_library()
    before = measure_heap({}, is_whole=False)
    address = library.malloc(MB)
    KEPT["mean"] = torch.ones(3, requires_grad=True) * 2
    found = growth_sources({}, before, 1, MB)
    library.free(address)
    assert found.lines == (ELSEWHERE,) and not found.is_named


def test_what_a_library_is_called_with_has_the_name_that_the_users_module_gives_it() -> None:
    # The argument is referenced by a frame of functools.
    @functools.singledispatch
    def search(value: np.ndarray) -> Heap:
        del value
        return measure_heap({}, is_whole=False)

    KEPT["it"] = np.ones(MB, np.uint8)
    held = search(KEPT["it"]).held["cpu"]
    KEPT.clear()
    assert [path for path, nbytes in held.items() if nbytes == MB] == [f"module {__name__}.KEPT['it']"]


def test_a_global_has_precedence_over_a_variable() -> None:
    local = KEPT["it"] = np.ones(MB, np.uint8)
    held = measure_heap({}, is_whole=False).held["cpu"]
    assert [path for path, nbytes in held.items() if nbytes == local.nbytes] == [
        f"module {__name__}.KEPT['it']"
    ]


def test_elements_outside_a_sample_are_represented_by_it_and_count_once() -> None:
    before = measure_heap({}, is_whole=True)
    KEPT["many"] = [Slotted([bytearray(100)]) for _ in range(20_000)]
    after = measure_heap({}, is_whole=True)
    more = after.totals["cpu"] - before.totals["cpu"]
    # Each entry has an object, a list and a bytearray, of about 270 bytes.
    assert more == pytest.approx(20_000 * 270, rel=0.3)
    names = [path for path in after.held["cpu"] if path not in before.held["cpu"]]
    assert not any("that nothing names" in path for path in names), names


def test_tensors_in_tuples_outside_a_sample_are_not_attributed_to_cpp() -> None:
    def tensors() -> list[Any]:
        return [(number, (torch.zeros(101), number)) for number in range(5_000)]

    # The list has no name, because only the evaluation of this line references it.
    held = [tensors(), measure_heap({}, is_whole=True)].pop().held["cpu"]
    assert any("<list that nothing names>[*][*][*]" in path for path in held), held
    assert not any("(101,)" in path for path in held), held


def test_another_thread_can_build_a_tuple_during_a_search() -> None:
    search = threading.Thread(target=measure_heap, args=({}, True))

    def elements() -> Iterator[int]:
        search.start()
        while search.is_alive():
            yield 0
            time.sleep(0.001)

    assert set(tuple(elements())) == {0}


def test_a_class_without_a_module_is_measured() -> None:
    # Types of C extensions may have no `__module__`, and neither do classes made in a bare namespace.
    bare: dict[str, Any] = {}
    exec("kind = type('Bare', (), {})", bare)
    assert not hasattr(bare["kind"], "__module__")
    KEPT["bare"] = bare["kind"]()
    KEPT["bare"].data = bytes(MB)
    for is_whole in (False, True):
        held = measure_heap({}, is_whole).held["cpu"]
        assert held[f"module {__name__}.KEPT['bare']"] == pytest.approx(MB, rel=0.1)


def test_the_container_that_keeps_pace_with_the_growth_is_the_cause() -> None:
    path, before = "m.stats['loss'][*].x", {"m.stats": 12, "m.stats['loss']": 60}
    # One more key, and twice as many entries of the list.
    assert growing_container(path, before, {"m.stats": 13, "m.stats['loss']": 120}) == "m.stats['loss']"
    path, before = "m.episodes[*][*]", {"m.episodes": 10, "m.episodes[*]": 500}
    assert growing_container(path, before, {"m.episodes": 20, "m.episodes[*]": 1_000}) == "m.episodes"
    assert growing_container(path, before, before) is None
