"""What torch compiles while a program runs: whether it can, how long it takes, and whether it ever ends."""

import logging
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_LOG = logging.getLogger(__name__)
COMPILING = "compiling for this processor"


@cache
def why_not_compiled() -> str | None:
    """Return why functions cannot be compiled here, None if they can; a tiny one is, which may take 10 s."""
    try:
        torch.compile(lambda x: x + 1, dynamic=False)(torch.zeros(2))
    except Exception as error:  # whatever a machine lacks: a compiler, headers, a folder to write to
        return str(error).strip().splitlines()[0] or type(error).__name__
    return None


class Compilations:
    """Counts what this process compiles, and tells of it while it lasts.

    Everything should be compiled once, at its first use. What is compiled after `settle` costs seconds, may
    go on for ever, and keeps memory: it is counted apart, and warned of.

    Args:
        tell: Is given words when a compilation begins, and None when it ends.
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
