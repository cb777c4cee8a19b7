"""Compiling functions by torch: whether it works here, how long it takes, and whether it ever ends."""

import logging
import signal
import subprocess
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from .errors import UserError

_LOG = logging.getLogger(__name__)
COMPILING = "compiling for this processor"
_OPTIONS = {
    # Both are checks at every call of what cannot change here: sizes between kernels, attributes of modules.
    # Without them a step of acting is a tenth faster.
    "size_asserts": False,
    "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe,
    # Kernels are few: further processes that compile cost more than they save, and they stay.
    "compile_threads": 1,
}


def load_compiler() -> None:
    """Import torch's compiler, which makes a folder then; a `UserError` if it cannot.

    torch itself imports it for much that compiles nothing. Cost: 75 MB and 2 s, once.
    """
    try:
        import torch._dynamo  # noqa: F401
    except OSError as error:
        raise UserError(
            f"torch's compiler cannot make its folder {error.filename or 'in TMPDIR'}: {error.strerror}. Set "
            "TORCHINDUCTOR_CACHE_DIR, or TMPDIR, where it lies otherwise, to a folder that can be written to."
        ) from error


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pure function that is compiled at its first call, once for each shape.

    Where it cannot be compiled, or for too many shapes, it runs as written from then on, after a warning;
    without one where Ctrl-C ended the compiler: the run is about to end, too.
    """
    load_compiler()
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    fast, is_possible = _compile(function), True

    def call(*args: Any) -> Any:
        nonlocal is_possible
        if is_possible:
            try:
                return fast(*args)
            except (TorchDynamoException, FailOnRecompileLimitHit) as error:
                is_possible = False
                if not _was_interrupted(error):
                    name, reason = function.__name__, _reason(error)
                    _LOG.warning("torch.compile failed for %s, falling back to eager: %s", name, reason)
        return function(*args)

    return call


@cache
def why_not_compiled() -> str | None:
    """Return why functions cannot be compiled here, None if they can; a tiny one is, which may take 10 s."""
    try:
        _compile(lambda x: x + 1)(torch.zeros(2))
    except Exception as error:  # whatever a machine lacks: a compiler, headers, a folder to write to
        return _reason(error)
    return None


class Compilations:
    """Counts what this process compiles; `tell` is given words while it lasts, and None at its end.

    Everything should be compiled once, at its first use. What is compiled after `settle` costs seconds, may
    never end, and keeps memory: it is counted separately, with a warning.
    """

    def __init__(self, tell: Callable[[str | None], None]) -> None:
        from torch._dynamo.callback import callback_handler  # no other way to know; loads the compiler

        self.count, self.late_count, self.seconds = 0, 0, 0.0
        self._tell, self._began, self._is_settled = tell, 0.0, False
        self._handler = callback_handler
        self._handler.register_start_callback(self._start)
        self._handler.register_end_callback(self._end)

    def settle(self) -> None:
        """Expect no more of them from now on."""
        self._is_settled = True

    def tags(self) -> dict[str, float]:
        """Return the totals by tag: compilations, those that came late, seconds."""
        return {
            "debug/compile/compilations": float(self.count),
            "debug/compile/recompilations": float(self.late_count),
            "debug/compile/seconds": self.seconds,
        }

    def close(self) -> None:
        """Count no more."""
        self._handler.remove_start_callback(self._start)
        self._handler.remove_end_callback(self._end)

    def _start(self, _: Any) -> None:
        self._began = time.monotonic()
        self._tell(COMPILING)

    def _end(self, _: Any) -> None:
        self.count += 1
        self.seconds += time.monotonic() - self._began
        self._tell(None)
        if self._is_settled:
            self.late_count += 1
            _LOG.warning("something was compiled again, which costs time and memory: have shapes changed?")


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what fails at its first call, and at no later moment, if it cannot be compiled."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    dynamo.fail_on_recompile_limit_hit = True  # else it would silently run as written
    functorch.force_non_lazy_backward_lowering = True  # else backward passes are compiled when they run
    return torch.compile(function, dynamic=False, options=_OPTIONS)


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error comes from a compiler that SIGINT ended: Ctrl-C is for it, too."""
    while error is not None:
        if isinstance(error, subprocess.CalledProcessError) and error.returncode == -signal.SIGINT:
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
