"""A container's bound is the number that its owner's code compares with its length, whatever its name."""

import asyncio
import collections
import functools
import heapq
import queue
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heapwatch.objects.capacity import Capacities

NAME, ROOM = "limit", 500


class Guarded:
    def __init__(self) -> None:
        self.limit, self.storage, self.position = 100, [], 0

    def add(self, item: Any) -> None:
        if len(self.storage) < getattr(self, NAME):
            self.storage.append(None)
        self.storage[self.position] = item
        self.position = (self.position + 1) % getattr(self, NAME)


class Popped:
    def __init__(self) -> None:
        self.mem_size, self.memory = np.int64(100), []

    def push(self, item: Any) -> None:
        self.memory.append(item)
        if len(self.memory) > self.mem_size:
            self.memory.pop(0)


class Evicting:
    def __init__(self) -> None:
        self.__size, self.items = 1e2, {}

    def __len__(self) -> int:
        return len(self.items)

    @property
    def is_full(self) -> bool:
        return len(self) >= self.__size

    def add(self, key: int) -> None:
        if self.is_full:
            self.evict()
        self.items[key] = key

    def evict(self) -> None:
        self.items.popitem()


class Cache(collections.OrderedDict):
    def __init__(self) -> None:
        super().__init__()
        self.keep = 100

    def __setitem__(self, key: int, value: int) -> None:
        super().__setitem__(key, value)
        if len(self) > self.keep:
            self.popitem(last=False)


class Sliced:
    def __init__(self) -> None:
        self.window, self.steps = 100, []

    def add(self, step: Any) -> None:
        self.steps.append(step)
        self.steps = self.steps[-self.window :]


class Best:
    def __init__(self) -> None:
        self.k, self.heap = 100, []

    def offer(self, value: float) -> None:
        count, most = len(self.heap), self.k
        if count < most:
            heapq.heappush(self.heap, value)
        else:
            heapq.heapreplace(self.heap, value)


class Configured:
    def __init__(self) -> None:
        self.config, self.rows = {"buffer_size": 100}, []

    def extend(self, rows: list[Any]) -> None:
        while len(self.rows) + len(rows) > self.config["buffer_size"]:
            del self.rows[0]
        self.rows += rows


class Trimmed:
    def __init__(self) -> None:
        self.rows = []

    def add(self, row: Any) -> None:
        excess = len(self.rows) - ROOM // 5
        if excess > 0:
            del self.rows[:excess]
        self.rows.append(row)


class Slotted:
    __slots__ = ("most", "rows")

    def __init__(self) -> None:
        self.most, self.rows = 100, []

    def add(self, row: Any) -> None:
        if len(self.rows) >= self.most:
            return
        self.rows.append(row)


class Addressed:
    def __init__(self) -> None:
        self.max_size, self.storage = 100, []

    def set(self, cursor: int, row: Any) -> None:
        if cursor >= self.max_size:
            raise RuntimeError("full")
        if cursor == len(self.storage):
            self.storage.append(row)
        else:
            self.storage[cursor] = row


class Ring:
    def __init__(self) -> None:
        self._storage, self._maxsize, self._next = [], 100, 0

    def add(self, row: Any) -> None:
        if self._next >= len(self._storage):
            self._storage.append(row)
        else:
            self._storage[self._next] = row
        self._next = (self._next + 1) % self._maxsize


def synchronized(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> None:
        method(self, *arguments)

    return call


class Decorated:
    def __init__(self) -> None:
        self.most, self.rows = 100, []

    @synchronized
    def add(self, row: Any) -> None:
        if (count := len(self.rows)) >= self.most:
            del self.rows[: count - self.most + 1]
        self.rows.append(row)


class Swapped:
    def __init__(self) -> None:
        self.most, self.rows = 100, []

    def add(self, row: Any) -> None:
        self.rows.append(row)
        if len(self.rows) >= self.most:
            done, self.rows = self.rows, []
            print(len(done))


class Parallel:
    """Also keeps dropped entries in a list that grows."""

    def __init__(self) -> None:
        self.most, self.states, self.actions = 100, [], []
        self.seen, self.dropped = [None], [None]

    def add(self, state: Any, action: Any) -> None:
        if len(self.states) >= self.most:
            self.dropped.append(self.states.pop(0))
            self.actions.pop(0)
        self.states.append(state)
        self.actions.append(action)
        self.seen.append(state)


class Unbounded:
    """Compares numbers with the length, but without limiting it."""

    def __init__(self) -> None:
        self.capacity = self.max_size = self.warmup = self.batch_size = 100
        self.log_every, self.history, self.other = 100, [], []
        self.next = 0

    def add(self, loss: float) -> None:
        self.history.append(loss)
        if len(self.other) > self.capacity:
            self.other.pop(0)
        if len(self.history) < self.warmup:
            return
        if len(self.history) % self.log_every == 0 or self.next == len(self.history):
            print(loss)
        self.next = (self.next + 1) % self.capacity
        if len(self.history) > self.batch_size:
            self.sample()

    def sample(self) -> list[float]:
        if len(self.history) < self.batch_size:
            return []
        return self.history[-self.batch_size :]


BOUNDED = {
    Guarded: ".storage",
    Popped: ".memory",
    Evicting: ".items",
    Cache: "",
    Sliced: ".steps",
    Best: ".heap",
    Configured: ".rows",
    Trimmed: ".rows",
    Slotted: ".rows",
    Addressed: ".storage",
    Ring: "._storage",
    Decorated: ".rows",
    Swapped: ".rows",
}


@pytest.mark.parametrize(("kind", "path"), BOUNDED.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_the_number_that_decides_whether_a_container_changes_is_its_capacity(kind: type, path: str) -> None:
    assert {(bound.path, bound.held, bound.capacity) for bound in Capacities().of(kind())} == {(path, 0, 100)}


CACHE: dict[int, int] = {}
LOG: list[int] = []
MOST = 300


def remember(key: int) -> None:
    if len(CACHE) >= MOST:
        forget()
    CACHE[key] = key


def forget() -> None:
    CACHE.pop(next(iter(CACHE)))


def record(CACHE: list[int]) -> None:
    if len(CACHE) < 7:
        CACHE.append(len(LOG))
    LOG.append(len(CACHE))


def test_the_functions_of_a_module_bound_its_containers() -> None:
    found = {(bound.path, bound.held, bound.capacity) for bound in Capacities().of(sys.modules[__name__])}
    assert found == {(".CACHE", 0, 300)}


PROGRAM = """
CAPACITY, replay, notes, seen = 300, [], [], []
for step in range(5):
    if len(replay) >= CAPACITY:
        replay.pop(0)
    replay.append(step)
    if len(notes) > 200:
        print("many notes")
    notes.append(step)
    seen = seen[-100:] + [step]

def other(notes):
    if len(notes) < 7:
        notes.append(0)
"""


def test_the_statements_of_a_program_bound_its_containers(tmp_path: Path) -> None:
    program = types.ModuleType("program")
    program.__file__ = str(tmp_path / "program.py")
    Path(program.__file__).write_text(PROGRAM)
    exec(PROGRAM, program.__dict__)
    found = {(bound.path, bound.held, bound.capacity) for bound in Capacities().of(program)}
    assert found == {(".replay", 5, 300), (".seen", 5, 100)}


@pytest.mark.parametrize(
    ("made", "path"),
    [(queue.Queue(100), ".queue"), (asyncio.Queue(100), "._queue")],
    ids=["queue", "asyncio"],
)
def test_queues_of_the_standard_library_are_bounded(made: Any, path: str) -> None:
    assert {(bound.path, bound.capacity) for bound in Capacities().of(made)} == {(path, 100)}


def test_containers_that_change_together_have_one_capacity() -> None:
    assert {bound.path for bound in Capacities().of(Parallel())} == {".states", ".actions"}


def test_numbers_without_effect_on_the_length_are_not_a_capacity() -> None:
    assert [bound.path for bound in Capacities().of(Unbounded())] == [".other"]


def test_variables_that_use_each_other_many_times_are_read_in_time() -> None:
    # In this event loop, `_connect_sock` would grow exponentially.
    loop = asyncio.new_event_loop()
    assert {bound.path for bound in Capacities().of(loop)} == {"._scheduled"}
    loop.close()


def test_reading_a_class_runs_none_of_its_code() -> None:
    class Hostile(Guarded):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

        def __setattr__(self, name: str, value: Any) -> None:
            object.__getattribute__(self, "__dict__")[name] = value

    assert [bound.capacity for bound in Capacities().of(Hostile())] == [100]


def test_the_largest_integer_is_not_a_capacity() -> None:
    guarded = Guarded()
    guarded.limit = sys.maxsize
    assert not [*Capacities().of(guarded)]
