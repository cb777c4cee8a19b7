"""Prevent calls into environments from changing process-wide settings."""

import ctypes
import gc
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings

# `signal.getsignal` wraps this function and is 2 us slower, because it looks up the name of each handler.
from _signal import getsignal  # pyright: ignore[reportMissingImports]
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import numpy as np

_LOG = logging.getLogger(__name__)
_OWN = logging.getLogger("reverie")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_LIBC = ctypes.CDLL(None)
_AUTOCAST_DEVICES = ("cpu", "cuda")
# This is larger than struct sigaction on any platform.
_SIGACTION_BYTES = 256
# Position of a Mersenne Twister right after seeding.
_DRAWN_ALL = 624
_UNKNOWN = object()
_MAIN = threading.main_thread()

_RESTORED = "Reverie restored it. With env.vectorization=async, changes stay in the environment's process."
_reported: set[tuple[str, str]] = set()
_collecting: list[list[str]] = []
_entered: list[Any] = []


class KeptState:
    """Context manager for calls into an environment's code. Restores process-wide settings on exit.

    Each changed setting is reported once per environment. Reseeded random generators are only reported, not
    restored, because the environment would then draw the same numbers again.

    With `is_step`, only settings that could break an update, lose a signal or hide a message are compared,
    because this needs only a few us. The next full comparison compares the others with `baselines`, the
    values first seen in each thread.
    """

    __slots__ = ("_baselines", "_generators", "_is_step", "_name", "_quick", "_slow", "_system", "_when")

    def __init__(
        self, name: str, when: str, *, is_step: bool = False, baselines: dict[int, Any] | None = None
    ) -> None:
        self._name, self._when, self._is_step = name, when, is_step
        self._baselines = {} if baselines is None else baselines

    def __enter__(self) -> None:
        """Record the settings."""
        if not self._is_step:
            self._system, self._generators = _system_handlers(), None
            if (thread := threading.get_ident()) not in self._baselines:
                self._baselines[thread] = _read_slow()
            self._slow = self._baselines[thread]
            # Reading the generators is as slow as a step, so only the first call of each kind is checked.
            if (self._name, self._when) not in _reported:
                _reported.add((self._name, self._when))
                self._generators = _just_seeded()
        self._quick = _read_quick()

    def __exit__(self, *_: object) -> None:
        """Restore changed settings."""
        if (now := _read_quick()) != self._quick:
            self._restore(_QUICK, self._quick, now)
        if self._is_step:
            return
        # A message through a root logger without handlers adds one. The DeepMind Control Suite does so.
        if not self._slow[1][1] and list(map(type, logging.root.handlers)) == [logging.StreamHandler]:
            logging.root.handlers.clear()
        if (now := _read_slow()) != self._slow:
            self._restore(_SLOW, self._slow, now)
        each = zip(self._quick[0], self._system, _system_handlers(), strict=True)
        if lost := [handler for handler, before, now in each if before != now]:
            with suppress(ValueError):
                _restore_handlers(self._quick[0])
            # Rendering with SDL only replaces default handlers, so it is not reported.
            if any(handler != signal.SIG_DFL for handler in lost):
                self._report(_QUICK[0][0], _RESTORED)
        if self._generators is None:
            return
        for library, state in _just_seeded().items():
            if state is not None and state != self._generators[library]:
                advice = "Reverie did not restore it. Use self.np_random instead."
                self._report(f"the seed of {library}'s global random generator", advice)

    def _restore(self, settings: "_Settings", before: tuple[Any, ...], now: tuple[Any, ...]) -> None:
        for (name, restore), old, new in zip(settings, before, now, strict=True):
            if new != old is not _UNKNOWN:
                # The old folder may no longer exist, and only the main thread can set signal handlers.
                with suppress(OSError, ValueError):
                    restore(old)
                self._report(name, _RESTORED)

    def _report(self, what: str, then: str) -> None:
        if (self._name, what) in _reported:
            return
        _reported.add((self._name, what))
        sentence = f"{self._name} changed {what} {self._when}. {then}"
        if _collecting:
            _collecting[-1].append(sentence)
        else:
            _LOG.warning(sentence)


@contextmanager
def collected_changes() -> Iterator[list[str]]:
    """Collect all reports in a list, including repeated ones, instead of logging them."""
    _reported.clear()
    _collecting.append([])
    try:
        yield _collecting[-1]
    finally:
        _collecting.pop()


def _read_quick() -> tuple[Any, ...]:
    """Return the values of `_QUICK`. Speed matters, because this runs twice in each step."""
    if torch := sys.modules.get("torch"):
        # `torch.get_default_device` is slow (4 us) and includes callers' `with torch.device(...)` blocks.
        device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        of_torch = (
            torch.get_default_dtype(),
            (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
            None if device is None else device.device,
            (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        )
    else:
        of_torch = (_UNKNOWN,) * 4
    return (
        (getsignal(signal.SIGINT), getsignal(signal.SIGTERM), getsignal(signal.SIGUSR1)),
        (sys.stdout, sys.stderr),
        (logging.root.manager.disable, _OWN.disabled),
        # A run may end after any step. Its last message must appear, with its folder relative to this one.
        _folder(),
        (_OWN.level, _OWN.propagate, _OWN.handlers[:], [handler.level for handler in _OWN.handlers]),
        [each for each in _own_children() if each.level or each.disabled or not each.propagate],
        *of_torch,
        # `warnings.catch_warnings` in the main thread replaces the filters and misleads other threads.
        warnings.filters[:] if threading.current_thread() is _MAIN else _UNKNOWN,
    )


def _read_slow() -> tuple[Any, ...]:
    """Return the values of `_SLOW`."""
    torch = sys.modules.get("torch")
    return (
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        (logging.root.level, logging.root.handlers[:]),
        torch.get_num_threads() if torch else _UNKNOWN,
        _determinism(torch) if torch else _UNKNOWN,
        torch.get_float32_matmul_precision() if torch else _UNKNOWN,
        _autocast(torch) if torch else _UNKNOWN,
        np.geterr(),
        (gc.isenabled(), gc.get_threshold()),
        _umask(),
        locale.setlocale(locale.LC_ALL),
    )


def _folder() -> Any:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return _UNKNOWN


def _umask() -> int:
    # The umask can only be read by setting it. Files that other threads create in between are private.
    os.umask(before := os.umask(0o077))
    return before


def _system_handlers() -> list[int | None]:
    """Return the addresses of the system's signal handlers. Python does not see changes by C libraries."""
    found = []
    for number in _SIGNALS:
        action = ctypes.create_string_buffer(_SIGACTION_BYTES)
        _LIBC.sigaction(int(number), None, action)
        # The address is the first field of the struct.
        found.append(ctypes.c_void_p.from_buffer(action).value)
    return found


def _restore_handlers(handlers: tuple[Any, ...]) -> None:
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        # `None` stands for a handler from a C library. Python cannot install it.
        if handler is not None:
            signal.signal(number, handler)


def _restore_streams(streams: Any) -> None:
    sys.stdout, sys.stderr = streams


def _restore_disabled(state: Any) -> None:
    disabled_below, _OWN.disabled = state
    logging.disable(disabled_below)
    # `logging.config` disables all existing loggers.
    for logger in _own_children():
        logger.disabled = False


def _restore_root_logger(state: Any) -> None:
    level, logging.root.handlers[:] = state
    logging.root.setLevel(level)


def _restore_own_logger(state: Any) -> None:
    level, _OWN.propagate, _OWN.handlers[:], levels = state
    _OWN.setLevel(level)
    for handler, level in zip(_OWN.handlers, levels, strict=True):
        handler.setLevel(level)


def _own_children() -> list[logging.Logger]:
    """Return the loggers of Reverie's modules. They have no separate configuration."""
    known = logging.root.manager.loggerDict
    found = map(known.get, _own_names(len(known)))
    return [each for each in found if isinstance(each, logging.Logger)]


@lru_cache(maxsize=1)
def _own_names(_: int) -> list[str]:
    """Return the logger names below `reverie.`, cached by the number of all names (0.1 ms per search)."""
    return [name for name in list(logging.root.manager.loggerDict) if name.startswith("reverie.")]


def _restore_own_children(configured: Any) -> None:
    for logger in _own_children():
        if logger not in configured:
            logger.setLevel(logging.NOTSET)
            logger.propagate, logger.disabled = True, False


def _restore_filters(filters: Any) -> None:
    warnings.resetwarnings()
    warnings.filters[:] = filters  # pyright: ignore[reportIndexIssue], a list, typed as a sequence


def _restore_collection(state: Any) -> None:
    is_enabled, thresholds = state
    gc.set_threshold(*thresholds)
    gc.enable() if is_enabled else gc.disable()


def _restore_grad_mode(modes: Any) -> None:
    has_grad, is_inference = modes
    torch = _torch()
    if torch.is_inference_mode_enabled() != is_inference:
        mode = torch.inference_mode(is_inference)
        mode.__enter__()
        # If the mode were garbage-collected, it would restore the environment's setting.
        _entered.append(mode)
    torch.set_grad_enabled(has_grad)


def _determinism(torch: Any) -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _restore_determinism(state: Any) -> None:
    _torch().use_deterministic_algorithms(state[0], warn_only=state[1])


def _autocast(torch: Any) -> list[bool]:
    return [torch.is_autocast_enabled(device) for device in _AUTOCAST_DEVICES]


def _restore_autocast(state: Any) -> None:
    for device, is_enabled in zip(_AUTOCAST_DEVICES, state, strict=True):
        _torch().set_autocast_enabled(device, is_enabled)


def _torch() -> Any:
    return sys.modules["torch"]


_Settings = tuple[tuple[str, Callable[[Any], object]], ...]
_QUICK: _Settings = (
    ("the handlers of SIGINT, SIGTERM or SIGUSR1", _restore_handlers),
    ("sys.stdout or sys.stderr", _restore_streams),
    ("the logging configuration", _restore_disabled),
    ("the working directory", os.chdir),
    ("the logging configuration", _restore_own_logger),
    ("the logging configuration", _restore_own_children),
    ("torch's default dtype", lambda dtype: _torch().set_default_dtype(dtype)),
    ("torch's grad mode", _restore_grad_mode),
    ("torch's default device", lambda device: _torch().set_default_device(device)),
    ("torch's anomaly detection", lambda modes: _torch().autograd.set_detect_anomaly(*modes)),
    ("the warning filters", _restore_filters),
)
_SLOW: _Settings = (
    ("the blocked signals", lambda signals: signal.pthread_sigmask(signal.SIG_SETMASK, signals)),
    ("the logging configuration", _restore_root_logger),
    ("torch's number of threads", lambda count: _torch().set_num_threads(count)),
    ("torch's deterministic algorithms", _restore_determinism),
    ("torch's matmul precision", lambda precision: _torch().set_float32_matmul_precision(precision)),
    ("torch's autocast", _restore_autocast),
    ("NumPy's error handling (np.seterr)", lambda errors: np.seterr(**errors)),
    ("garbage collection", _restore_collection),
    ("the umask", os.umask),
    ("the locale", lambda name: locale.setlocale(locale.LC_ALL, name)),
)


def _just_seeded() -> dict[str, Any]:
    """Return the state of each library's global generator, or `None` if it was not just seeded."""
    words, torch = random.getstate()[1], sys.modules.get("torch")
    state: Any = np.random.get_state(legacy=False)
    used, key = state["state"].get("pos"), state["state"].get("key")
    return {
        "Python": words if words[-1] == _DRAWN_ALL else None,
        "NumPy": key.tobytes() if used == _DRAWN_ALL else None,
        "torch": torch.initial_seed() if torch else None,
    }
