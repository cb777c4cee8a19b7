"""Ten leaks that are injected into an unmodified program.

`install(name, every)` patches torch or gymnasium before the program starts. Each leak then retains memory at
every `every`-th optimizer step. `losses` and `state` count backward passes instead, and `frames` counts
environment steps. The holder's name does not occur elsewhere in the program, so a report that includes it has
found the leak.
"""

import collections
import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

ARRAY_BYTES = 65_536
"""Memory that one event retains in most leaks. It is written to and therefore resident."""

HANDLE_LIMIT = 400
"""Maximum number of descriptors and threads. A process may have about 1,000 descriptors."""

kept_losses: list[torch.Tensor] = []
carried_state: list[torch.Tensor] = [torch.zeros(())]
pinned_views: collections.deque[np.ndarray] = collections.deque()
rows_by_step: dict[int, np.ndarray] = {}
open_handles: list[int] = []
sleepers: list[threading.Thread] = []


def _array() -> np.ndarray:
    return np.full(ARRAY_BYTES, 1, np.uint8)


class Every:
    """Calls an action on every `every`-th call.

    Attributes:
        events: Number of times that the action has been called.
    """

    def __init__(self, every: int, action: Callable[..., None]):
        self._every, self._action, self._calls, self.events = every, action, 0, 0

    def __call__(self, *arguments: Any) -> None:
        """Count the call, and act if it is due."""
        self._calls += 1
        if self._calls % self._every == 0:
            self._action(*arguments)
            self.events += 1


class Listener:
    """A subscriber that the leak `callbacks` adds. Its bound method keeps it alive."""

    def __init__(self):
        self.window = _array()

    def on_step(self) -> None:
        """Do nothing. This is never called."""


class EventBus:
    """Keeps each subscribed bound method, without a way to unsubscribe."""

    def __init__(self):
        self.subscribers: list[Callable[[], None]] = []


bus = EventBus()


def _before_backward(event: Every) -> None:
    """Call the event with each loss before its backward pass, in the program's thread."""
    backward = torch.Tensor.backward

    def leaking_backward(self: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        event(self)
        return backward(self, *arguments, **keywords)

    torch.Tensor.backward = leaking_backward


def _after_step(event: Every) -> None:
    """Call the event with the optimizer after each optimizer step."""
    register_optimizer_step_post_hook(lambda optimizer, _arguments, _keywords: event(optimizer))


def _keep_loss(loss: torch.Tensor) -> None:
    kept_losses.append(loss)


def _carry_state(loss: torch.Tensor) -> None:
    carried_state[0] = carried_state[0] * 0.9 + loss.mean()


def _pin_view(_optimizer: torch.optim.Optimizer) -> None:
    pinned_views.append(_array()[:1])


def _keep_row(_optimizer: torch.optim.Optimizer) -> None:
    rows_by_step[len(rows_by_step)] = _array()


def _subscribe(_optimizer: torch.optim.Optimizer) -> None:
    bus.subscribers.append(Listener().on_step)


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def _allocate_in_c(_optimizer: torch.optim.Optimizer) -> None:
    _libc.memset(_libc.malloc(ARRAY_BYTES), 1, ARRAY_BYTES)


def _open_file(_optimizer: torch.optim.Optimizer) -> None:
    if len(open_handles) < HANDLE_LIMIT:
        open_handles.append(os.open(os.devnull, os.O_RDONLY))


def _start_thread(_optimizer: torch.optim.Optimizer) -> None:
    if len(sleepers) < HANDLE_LIMIT:
        sleepers.append(threading.Thread(target=threading.Event().wait, daemon=True))
        sleepers[-1].start()


def _install_on_optimizer(every: int) -> Every:
    """Keep losses in an attribute of the optimizer that steps next after their backward pass."""
    latest: list[torch.Tensor] = []

    def note(loss: torch.Tensor) -> None:
        latest[:] = [loss]

    def keep(optimizer: Any) -> None:
        if not hasattr(optimizer, "loss_history"):
            optimizer.loss_history = []
        optimizer.loss_history.extend(latest)
        latest.clear()

    _before_backward(Every(1, note))
    event = Every(every, keep)
    _after_step(event)
    return event


def _install_frames(every: int) -> Every:
    """Wrap each environment made by `gymnasium.make` so that it keeps images."""
    import gymnasium

    class FrameKeeper(gymnasium.Wrapper):
        """Keeps a 64 KB image at every `every`-th step, as if for a video that is never written."""

        def __init__(self, env: gymnasium.Env):
            super().__init__(env)
            self.seen_frames: list[np.ndarray] = []

        def step(self, action: Any) -> Any:
            """Step, and keep an image if it is due."""
            event(self)
            return self.env.step(action)

    event = Every(every, lambda keeper: keeper.seen_frames.append(_array()))
    make = gymnasium.make
    gymnasium.make = lambda *arguments, **keywords: FrameKeeper(make(*arguments, **keywords))
    return event


_SIMPLE: dict[str, tuple[Callable[[Every], None], Callable[..., None]]] = {
    "losses": (_before_backward, _keep_loss),
    "state": (_before_backward, _carry_state),
    "views": (_after_step, _pin_view),
    "dict": (_after_step, _keep_row),
    "callbacks": (_after_step, _subscribe),
    "native": (_after_step, _allocate_in_c),
    "descriptors": (_after_step, _open_file),
    "threads": (_after_step, _start_thread),
}

EXPECTED: dict[str, tuple[str, ...]] = {
    "losses": ("kept_losses",),
    "optimizer": ("loss_history",),
    "state": ("carried_state",),
    "views": ("pinned_views",),
    "dict": ("rows_by_step",),
    "frames": ("seen_frames",),
    "callbacks": ("subscribers", "listener"),
    "native": ("native memory",),
    "descriptors": ("open files", "descriptors"),
    "threads": ("threads",),
}
"""Texts by leak. A correct report's resource or sources contain at least one of them, ignoring case."""

NAMES = tuple(EXPECTED)
"""All leaks that `install` supports."""


def install(name: str, every: int = 1) -> Every:
    """Install a leak in this process before the program starts.

    Args:
        name: One of `NAMES`.
        every: Number of steps per event.

    Returns:
        The counter of events.
    """
    if name == "optimizer":
        return _install_on_optimizer(every)
    if name == "frames":
        return _install_frames(every)
    attach, action = _SIMPLE[name]
    event = Every(every, action)
    attach(event)
    return event
