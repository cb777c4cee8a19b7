"""Calls that are made beside the main thread, or at once, with one form of result."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")


class SideThread:
    """One thread that makes calls in the order in which they are begun.

    It never keeps the process from ending: threads of `concurrent.futures` would wait for a call that hangs.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._newest: Future[Any] | None = None
        Thread(target=self._serve, name=name, daemon=True).start()

    def begin(self, call: Callable[[], Result]) -> Future[Result]:
        """Return at once; the result of the future is that of the call, or raises what it raised."""
        future = self._newest = Future()
        self._calls.put((call, future))
        return future

    def wait(self, seconds: float | None = None) -> None:
        """Return when all calls have ended, or after so many seconds."""
        wait([self._newest] if self._newest else [], seconds)

    def close(self, seconds: float) -> None:
        """Take no more calls; wait for those that are begun, but no longer than `seconds`."""
        self._calls.put(None)
        self.wait(seconds)

    def _serve(self) -> None:
        while (begun := self._calls.get()) is not None:
            call, future = begun
            try:
                future.set_result(call())
            except BaseException as error:  # for whoever asks for the result
                future.set_exception(error)
            del begun, call, future  # else they would live until the next call


def at_once(call: Callable[[], Result]) -> Future[Result]:
    """Make a call in this thread; raise what it raises."""
    future: Future[Result] = Future()
    future.set_result(call())
    return future


def call_with_timeout(seconds: float, call: Callable[[], Result]) -> Result:
    """Return or raise what a call in a thread does, which may outlive this; or raise a `TimeoutError`."""
    side = SideThread("a call that may hang")
    answer = side.begin(call)
    side.close(seconds)
    if not answer.done():
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.result()
