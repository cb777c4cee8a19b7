"""Run calls in a background thread or immediately. Both return futures."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")


class SideThread:
    """A thread that runs calls one after another, in the order of submission.

    It never blocks the exit of the process, whereas `concurrent.futures` would wait for a call that hangs.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._newest: Future[Any] | None = None
        Thread(target=self._serve, name=name, daemon=True).start()

    def begin(self, call: Callable[[], Result]) -> Future[Result]:
        """Submit a call without waiting. The future returns its result or raises its error."""
        future = self._newest = Future()
        self._calls.put((call, future))
        return future

    def wait(self, seconds: float | None = None) -> None:
        """Wait until all calls have finished, for at most `seconds`."""
        wait([self._newest] if self._newest else [], seconds)

    def close(self, seconds: float) -> None:
        """Accept no more calls, and wait up to `seconds` for the submitted ones."""
        self._calls.put(None)
        self.wait(seconds)

    def _serve(self) -> None:
        while (begun := self._calls.get()) is not None:
            call, future = begun
            try:
                future.set_result(call())
            except BaseException as error:
                # `future.result()` raises the error in the caller's thread.
                future.set_exception(error)
            # References in these variables would keep objects in memory until the next call.
            del begun, call, future


def at_once(call: Callable[[], Result]) -> Future[Result]:
    """Run a call in this thread and return its result as a future. Its errors are raised here."""
    future: Future[Result] = Future()
    future.set_result(call())
    return future


def call_with_timeout(seconds: float, call: Callable[[], Result]) -> Result:
    """Run a call in a thread, and return its result or raise its error.

    Raises:
        TimeoutError: If the call does not finish in time. Its thread then keeps running.
    """
    side = SideThread("a call that may hang")
    answer = side.begin(call)
    side.close(seconds)
    if not answer.done():
        raise TimeoutError(f"no response within {seconds:g} s")
    return answer.result()
