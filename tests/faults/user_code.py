"""Leaks in user code, outside the run's objects, and decoys that resemble them."""

import collections
import ctypes
import functools
import math
import mmap
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator

from .wrap import after_environment_step, after_update

BYTES = 60_000
"""Bytes kept by one call of user code, or 120 KB per log interval if called at each environment step."""

TRACE: list[np.ndarray] = []
EPISODES: dict[int, dict[str, Any]] = {}
LINES: list[str] = []
PACKETS: list[bytes] = []
ERRORS: list[BaseException] = []
FRAMES: "queue.Queue[np.ndarray]" = queue.Queue()
SOCKETS: list[socket.socket] = []
MAPS: list[mmap.mmap] = []


class Logger:
    history: list[torch.Tensor] = []  # noqa: RUF012  # the very mistake


class Recorder:
    """A user's wrapper that keeps its frames."""

    def __init__(self) -> None:
        self.frames: list[np.ndarray] = []

    def __call__(self, arrival: Any) -> None:
        self.frames.append(arrival.observation["image"].copy())


@functools.lru_cache(maxsize=10**6)
def features(number: int) -> np.ndarray:
    return np.full(BYTES, number % 256, np.uint8)


def module_global(run: WorldModelOrchestrator) -> None:
    """Keep an array in a global of the user's module at each step."""
    after_environment_step(run, lambda _: TRACE.append(np.ones(BYTES, np.uint8)))


def class_attribute(run: WorldModelOrchestrator) -> None:
    """Keep a tensor in an attribute of the user's class at each step."""
    after_environment_step(run, lambda _: Logger.history.append(torch.ones(BYTES, dtype=torch.uint8)))


def closure(run: WorldModelOrchestrator) -> None:
    """Keep an array in a closure variable at each step."""
    remembered: list[np.ndarray] = []
    after_environment_step(run, lambda _: remembered.append(np.ones(BYTES, np.uint8)))


def lru_cache(run: WorldModelOrchestrator) -> None:
    """Call a function with an effectively unbounded cache, with a new number at each step."""
    numbers = iter(range(10**9))

    def look(_: Any) -> None:
        features(next(numbers))

    after_environment_step(run, look)


def queue_of_views(run: WorldModelOrchestrator) -> None:
    """Put the first row of a 60 KB frame into a queue that is never read."""
    after_environment_step(run, lambda _: FRAMES.put(np.ones((100, BYTES // 100), np.uint8)[0]))


def dict_by_episode(run: WorldModelOrchestrator) -> None:
    """Store each step under its number in a dict that is never cleared."""

    def remember(_: Any) -> None:
        EPISODES[len(EPISODES)] = {"obs": np.ones(BYTES, np.uint8), "done": False}

    after_environment_step(run, remember)


def list_of_a_thread(run: WorldModelOrchestrator) -> None:
    """Pass each step to a thread that keeps it in a local variable."""
    inbox: queue.Queue[np.ndarray] = queue.Queue()

    def collect() -> None:
        gathered = []
        while True:
            gathered.append(inbox.get())

    threading.Thread(target=collect, daemon=True).start()
    after_environment_step(run, lambda _: inbox.put(np.ones(BYTES, np.uint8)))


def strings(run: WorldModelOrchestrator) -> None:
    """Keep a line of text at each step."""
    after_environment_step(run, lambda _: LINES.append(f"{len(LINES)} " + "x" * BYTES))


def byte_strings(run: WorldModelOrchestrator) -> None:
    """Keep an encoded frame at each step."""
    after_environment_step(run, lambda _: PACKETS.append(len(PACKETS).to_bytes(8, "little") + bytes(BYTES)))


def exceptions(run: WorldModelOrchestrator) -> None:
    """Keep an exception, and through its traceback the frame, at each step."""

    def fail(_: Any) -> None:
        observation = np.ones(BYTES, np.uint8)
        try:
            raise ValueError(f"bad observation of {observation.nbytes} bytes")
        except ValueError as error:
            ERRORS.append(error)

    after_environment_step(run, fail)


def frames_of_a_wrapper(run: WorldModelOrchestrator) -> None:
    """Keep all frames in an environment wrapper."""
    after_environment_step(run, Recorder())


def sockets(run: WorldModelOrchestrator) -> None:
    """Open a socket at each step without closing any."""
    after_environment_step(run, lambda _: SOCKETS.append(socket.socket()))


def anonymous_maps(run: WorldModelOrchestrator) -> None:
    """Map memory outside the allocator at each step without unmapping any."""

    def map_more(_: Any) -> None:
        block = mmap.mmap(-1, 4 * BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Untouched memory would not count.
        block.write(bytes(4 * BYTES))
        MAPS.append(block)

    after_environment_step(run, map_more)


def maps_of_a_library(run: WorldModelOrchestrator) -> None:
    """Let a library map memory outside the allocator at each step, and lose the address."""
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

    def map_more(_: Any) -> None:
        size = 4 * BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        ctypes.memset(address, 1, size)

    after_environment_step(run, map_more)


def ctypes_malloc(run: WorldModelOrchestrator) -> None:
    """Allocate memory through `ctypes` at each step, and lose the pointer."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p

    after_environment_step(run, lambda _: library.malloc(BYTES))


LEAKS: dict[str, tuple[Callable[[WorldModelOrchestrator], None], str]] = {
    inject.__name__: (inject, culprit)
    for inject, culprit in (
        (module_global, "module tests.faults.user_code.TRACE[*]"),
        (class_attribute, "class tests.faults.user_code.Logger.history[*]"),
        (closure, "<closure remembered>[*]"),
        (lru_cache, "module tests.faults.user_code.features.<cache>"),
        (queue_of_views, "module tests.faults.user_code.FRAMES.queue[*]"),
        (dict_by_episode, "module tests.faults.user_code.EPISODES[*]['obs']"),
        (list_of_a_thread, "frame collect gathered[*]"),
        (strings, "module tests.faults.user_code.LINES"),
        (byte_strings, "module tests.faults.user_code.PACKETS"),
        (exceptions, "module tests.faults.user_code.ERRORS[*].<traceback fail:observation>"),
        (frames_of_a_wrapper, "frames[*]"),
        (sockets, "open files"),
        (anonymous_maps, "module tests.faults.user_code.MAPS[*]"),
        (maps_of_a_library, "a library maps itself"),
        (ctypes_malloc, "not seen in Python's heap: native memory"),
    )
}
"""Each leak with the required text of its report."""


def cache_of(entries: int) -> Callable[[WorldModelOrchestrator], None]:
    """Return a decoy that fills a cache of `entries` entries and then stops."""

    def inject(run: WorldModelOrchestrator) -> None:
        cache: list[np.ndarray] = []

        def fill(_: Any) -> None:
            # The cache is full after at most 250 steps of the loop.
            for _ in range(max(1, entries // 250)):
                if len(cache) < entries:
                    cache.append(np.ones(BYTES, np.uint8))

        after_environment_step(run, fill)

    inject.__name__ = f"cache_of_{entries}"
    inject.__doc__ = f"Fill a cache of {entries:,} entries, and stop."
    return inject


def logarithm(run: WorldModelOrchestrator) -> None:
    """Keep objects whose number grows with the logarithm of the steps."""
    held: list[bytes] = []
    steps = iter(range(1, 10**9))

    def grow(_: Any) -> None:
        wanted = int(2000 * math.log(next(steps)))
        held.extend(bytes(1000) for _ in range(wanted - len(held)))

    after_environment_step(run, grow)


def bounded_deque(run: WorldModelOrchestrator) -> None:
    """Keep the last forty frames."""
    recent: collections.deque[np.ndarray] = collections.deque(maxlen=40)
    after_update(run, lambda _: recent.append(np.ones(BYTES, np.uint8)))


DECOYS = (cache_of(60), cache_of(160), cache_of(1000), logarithm, bounded_deque)
"""Decoys that must not end a run under memory.on_leak=stop."""
