"""Signals are recorded as requests, and handlers of other code are restored."""

import _thread
import io
import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from reverie.orchestration.signals import Signals

from ..runs.warm import wait_until

NUMBERS = (signal.SIGINT, signal.SIGTERM)
ALL = (*NUMBERS, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def all_is_told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait at the end of a test for threads that log its signals, so that the next test does not see them."""
    begun, ended = [], []
    start = _thread.start_new_thread

    def counted(tell: Callable[..., object], arguments: tuple[object, ...]) -> int:
        begun.append(arguments)
        return start(lambda: ended.append(tell(*arguments)), ())

    monkeypatch.setattr("reverie.orchestration.signals._thread.start_new_thread", counted)
    yield
    wait_until(lambda: len(ended) == len(begun))


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_one_signal_asks_to_stop_and_raises_nothing(number: signal.Signals) -> None:
    with Signals() as asked:
        assert not asked.stop
        os.kill(os.getpid(), number)
        assert asked.stop
    assert asked.stop and not asked.take_save()


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    with Signals(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_after_a_sigterm_is_one_more_request() -> None:
    with Signals() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.stop
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_repeated_sigterm_is_still_one_request() -> None:
    with Signals() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.stop


def test_handlers_return_also_after_an_error() -> None:
    before = [signal.getsignal(number) for number in ALL]
    with pytest.raises(ZeroDivisionError), Signals():
        assert [signal.getsignal(number) for number in ALL] != before
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in ALL] == before


def test_a_context_may_end_in_another_thread() -> None:
    with Signals() as asked, ThreadPoolExecutor(1) as pool:
        assert pool.submit(asked.__exit__).exception() is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.stop


def test_sigusr1_asks_once_for_a_checkpoint_and_not_to_stop() -> None:
    with Signals() as asked:
        assert not asked.take_save()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert asked.take_save() and not asked.take_save()
        assert not asked.stop


class InterruptedFile(io.RawIOBase):
    """A file that receives a signal during its first write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.written.append(bytes(data))
        if len(self.written) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return len(data)


def test_a_signal_in_the_middle_of_a_log_line_is_told_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    file = InterruptedFile()
    handler = logging.StreamHandler(io.TextIOWrapper(io.BufferedWriter(file)))
    logger = logging.getLogger("reverie")
    logger.addHandler(handler)
    try:
        with Signals() as asked:
            logger.warning("a line")
            assert asked.stop
        wait_until(lambda: len(file.written) >= 2)
    finally:
        logger.removeHandler(handler)
    told = b"SIGTERM: finishing the step and writing a checkpoint.\n"
    assert file.written == [b"a line\n", told]
    assert "Logging error" not in capsys.readouterr().err
