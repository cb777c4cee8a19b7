"""Calls in a side thread: in order, in one thread, with their errors, and without blocking the exit."""

import subprocess
import sys
from threading import Event, current_thread

import pytest

from reverie.utils.side_thread import SideThread

from ..runs.warm import LONG_ENOUGH_SECONDS

HANGS = """
from threading import Event
from reverie.utils.side_thread import SideThread
side = SideThread("hangs")
side.begin(Event().wait)
side.close(seconds=0.01)
"""


def test_calls_are_made_in_order_by_one_thread_beside_this_one() -> None:
    side, gate, made = SideThread("beside"), Event(), []

    def call(number: int) -> str:
        gate.wait(60)
        made.append(number)
        return current_thread().name

    futures = [side.begin(lambda number=number: call(number)) for number in range(3)]
    side.wait(0.01)
    # `begin` has not waited, and `wait` respects its limit.
    assert made == []
    gate.set()
    side.wait()
    assert made == [0, 1, 2] and [future.result() for future in futures] == ["beside"] * 3
    side.close(60)


def test_an_error_is_raised_where_the_result_is_wanted_and_the_next_call_is_made() -> None:
    side = SideThread("fails")
    failing, following = side.begin(lambda: 1 // 0), side.begin(lambda: 2)
    side.close(60)
    assert following.result() == 2
    with pytest.raises(ZeroDivisionError):
        failing.result()


def test_a_call_that_hangs_does_not_keep_the_process() -> None:
    subprocess.run([sys.executable, "-c", HANGS], check=True, timeout=LONG_ENOUGH_SECONDS)
