"""A stop request is true after a signal, and leaves the handlers of others as they were."""

import os
import signal

import pytest

from reverie.orchestration.signals import StopRequest

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_one_signal_asks_to_stop_and_raises_nothing(number: signal.Signals) -> None:
    with StopRequest() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
    assert stop


@pytest.mark.parametrize("first", NUMBERS, ids=lambda number: number.name)
def test_ctrl_c_after_a_request_interrupts_at_once(first: signal.Signals) -> None:
    with StopRequest(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_repeated_sigterm_is_still_one_request() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop


def test_handlers_return_also_after_an_error() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with pytest.raises(ZeroDivisionError), StopRequest():
        assert [signal.getsignal(number) for number in NUMBERS] != before
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in NUMBERS] == before
