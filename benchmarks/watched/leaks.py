"""Ten leaks that are put into a program from outside: the program itself stays as it is.

`install(name, every)` patches torch, or gymnasium, before the program starts. Each leak then keeps something
at every `every`-th step of an optimiser (`losses` and `state`: at every `every`-th backward pass; `frames`:
at every `every`-th step of an environment). What holds it has a name that is nowhere else in the program, so
that a report which names it can be recognised.
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
"""What one event of most leaks keeps, in memory that is written to and therefore resident."""

HANDLE_LIMIT = 400
"""The most descriptors and threads: a process has about 1,000 of the first."""

kept_losses: list[torch.Tensor] = []
carried_state: list[torch.Tensor] = [torch.zeros(())]
pinned_views: collections.deque[np.ndarray] = collections.deque()
rows_by_step: dict[int, np.ndarray] = {}
open_handles: list[int] = []
sleepers: list[threading.Thread] = []


def _array() -> np.ndarray:
    return np.full(ARRAY_BYTES, 1, np.uint8)


class Every:
    """Call an action at each `every`-th of its own calls.

    Attributes:
        events: How often the action has been called.
    """

    def __init__(self, every: int, action: Callable[..., None]):
        self._every, self._action, self._calls, self.events = every, action, 0, 0

    def __call__(self, *arguments: Any) -> None:
        """Count, and perhaps act."""
        self._calls += 1
        if self._calls % self._every == 0:
            self._action(*arguments)
            self.events += 1


class Listener:
    """What one event of `callbacks` subscribes: its bound method keeps all of it."""

    def __init__(self):
        self.window = _array()

    def on_step(self) -> None:
        """Do nothing: nobody ever calls it."""


class EventBus:
    """Keeps each bound method that has subscribed, and has no way to unsubscribe."""

    def __init__(self):
        self.subscribers: list[Callable[[], None]] = []


bus = EventBus()


def _before_backward(event: Every) -> None:
    """Call the event with each loss, in the program's thread, before its backward pass."""
    backward = torch.Tensor.backward

    def leaking_backward(self: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        event(self)
        return backward(self, *arguments, **keywords)

    torch.Tensor.backward = leaking_backward


def _after_step(event: Every) -> None:
    """Call the event with each optimiser after each of its steps."""
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
    """Keep losses in an attribute of the optimiser that steps next after their backward pass."""
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
    """Wrap each environment that `gymnasium.make` makes in one that keeps pictures."""
    import gymnasium

    class FrameKeeper(gymnasium.Wrapper):
        """Keeps a picture of 64 KB at each `every`-th step, as for a video that nobody ever writes."""

        def __init__(self, env: gymnasium.Env):
            super().__init__(env)
            self.seen_frames: list[np.ndarray] = []

        def step(self, action: Any) -> Any:
            """Step, and perhaps keep a picture."""
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
    "native": ("no python object holds it",),
    "descriptors": ("open files", "descriptors"),
    "threads": ("threads",),
}
"""One of these is in the resource or in the sources of a right report, in whatever case of letters."""

NAMES = tuple(EXPECTED)
"""Each leak that `install` knows."""


def install(name: str, every: int = 1) -> Every:
    """Put a leak into this process; the program starts afterwards.

    Args:
        name: One of `NAMES`.
        every: How many steps there are for one event.

    Returns:
        What counts the events.
    """
    if name == "optimizer":
        return _install_on_optimizer(every)
    if name == "frames":
        return _install_frames(every)
    attach, action = _SIMPLE[name]
    event = Every(every, action)
    attach(event)
    return event
