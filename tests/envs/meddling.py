"""An environment that changes process settings when it is imported, created, reset or stepped."""

import ctypes
import gc
import io
import locale
import logging
import logging.config
import os
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ENTERED: list[Any] = []


def of_torch(change: Callable[[Any], object]) -> Callable[[], object]:
    """Return a change of torch, if torch is loaded. Environment processes do not load it."""
    return lambda: change(sys.modules["torch"]) if "torch" in sys.modules else None


def handler(*_: object) -> None: ...


def enter(mode: Any) -> None:
    """Enter a mode of torch permanently."""
    mode.__enter__()
    ENTERED.append(mode)


CHANGES: dict[str, Callable[[], object]] = {
    "working directory": lambda: os.chdir(tempfile.gettempdir()),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
    "standard streams": lambda: (
        setattr(sys, "stdout", io.StringIO()),
        setattr(sys, "stderr", io.StringIO()),
    ),
    "logging.disable": lambda: logging.disable(logging.CRITICAL),
    "dictConfig": lambda: logging.config.dictConfig({"version": 1}),
    "root logger": lambda: logging.root.setLevel(logging.CRITICAL),
    "log handlers": lambda: logging.root.handlers.clear(),
    "own logger": lambda: logging.getLogger("reverie").setLevel(logging.CRITICAL),
    "all loggers": lambda: [logging.getLogger(name).setLevel(60) for name in logging.root.manager.loggerDict],
    "levels of handlers": lambda: [each.setLevel(60) for each in logging.getLogger("reverie").handlers],
    "default dtype": of_torch(lambda torch: torch.set_default_dtype(torch.float64)),
    "grad mode": of_torch(lambda torch: torch.set_grad_enabled(False)),
    "inference mode": of_torch(lambda torch: enter(torch.inference_mode())),
    "default device": of_torch(lambda torch: torch.set_default_device("meta")),
    "anomaly detection": of_torch(lambda torch: torch.autograd.set_detect_anomaly(True)),
    "threads": of_torch(lambda torch: torch.set_num_threads(torch.get_num_threads() + 1)),
    "deterministic": of_torch(lambda torch: torch.use_deterministic_algorithms(True)),
    "precision": of_torch(lambda torch: torch.set_float32_matmul_precision("medium")),
    "autocast": of_torch(lambda torch: torch.set_autocast_enabled("cpu", True)),
    "np.seterr": lambda: np.seterr(all="raise"),
    "warning filters": lambda: warnings.simplefilter("ignore"),
    "gc": gc.disable,
    "gc thresholds": lambda: gc.set_threshold(5, 5, 5),
    "umask": lambda: os.umask(0o123),
    "locale": lambda: locale.setlocale(
        locale.LC_CTYPE, "C.UTF-8" if locale.setlocale(locale.LC_CTYPE) == "C" else "C"
    ),
    # The handlers come last, because a signal that arrives between a change and its restoration is lost.
    "SIGINT handler": lambda: signal.signal(signal.SIGINT, handler),
    "SIGTERM handler": lambda: signal.signal(signal.SIGTERM, handler),
    "SIGUSR1 handler": lambda: signal.signal(signal.SIGUSR1, handler),
}

# A C library changes handlers in the same way: Python still reports the old one. 1 is SIG_IGN.
C_HANDLER = {"C handler": lambda: ctypes.CDLL(None).signal(int(signal.SIGUSR1), ctypes.c_void_p(1))}

MESSAGE = {"message": lambda: logging.warning("a message")}

RESEEDS: dict[str, Callable[[], object]] = {
    "Python": lambda: random.seed(7),
    "NumPy": lambda: np.random.seed(7),
    "torch": of_torch(lambda torch: torch.manual_seed(7)),
}


def change(names: list[str]) -> None:
    """Change some settings of this process."""
    for name in names:
        (CHANGES | RESEEDS | C_HANDLER | MESSAGE)[name]()


class Meddler(gymnasium.Env[Any, Any]):
    """Ends after `steps`, and changes all settings or `changes` at a `moment`: made, reset, step or always.

    Each instance appends its process id to the file `pids`.
    """

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(
        self, changes: list[str] | None = None, moment: str = "", pids: str = os.devnull, steps: int = 3
    ) -> None:
        self._changes, self._moment = [*CHANGES] if changes is None else changes, moment
        self._last = steps
        with Path(pids).open("a") as file:
            print(os.getpid(), file=file)
        self._meddle("made")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._meddle("reset")
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._meddle("step")
        return np.full(3, 0.1 * self._steps, np.float32), 1.0, self._steps >= self._last, False, {}

    def _meddle(self, moment: str) -> None:
        if moment == self._moment or self._moment == "always":
            change(self._changes)
