"""When a watch samples: by the clock, after steps of an optimizer, or where a function is called."""

import asyncio
import gc
import inspect
import math
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from heapwatch import Watch
from heapwatch.watch.phase import _WAITING as waiting
from heapwatch.watch.phase import Phase

from .watching import write

HELD: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    yield
    HELD.clear()


def test_the_clock_counts_until_the_first_step_restarts_the_watch() -> None:
    seen: list[str] = []

    def sample(step: int) -> int:
        seen.append(f"sample {step}")
        # The tick was requested during a heap search.
        phase._tick()
        return step + 1

    phase = Phase(sample, lambda step: seen.append("begin"), seconds=0.5)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    phase._created_at = -math.inf
    phase._tick()
    assert seen == ["sample 1"] and phase.is_timed
    phase._after_step(optimizer, (), {})
    # During a pause, a tick does not restart anything.
    phase._tick()
    phase._after_step(optimizer, (), {})
    assert seen == ["sample 1", "begin", "sample 2", "sample 3"] and not phase.is_timed


def test_the_clock_waits_for_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def sample(step: int) -> int:
        seen.append(step)
        return step + 1

    phase = Phase(sample, lambda step: None, seconds=0.5)
    HELD["tick"] = phase._tick
    phase._created_at = -math.inf
    write(tmp_path, f"import sys\nsys.modules[{__name__!r}].HELD['tick']()\n", "slow_to_import.py")
    monkeypatch.syspath_prepend(tmp_path)
    import_module("slow_to_import")
    assert not seen
    phase._tick()
    assert seen == [1]


class Stop(Exception):
    """Like the exception of a timer that a program sets."""


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, Stop])
def test_what_a_handler_of_a_signal_raises_in_a_sample_reaches_the_program(kind: type[BaseException]) -> None:
    def stop(*_: Any) -> None:
        raise kind("own")

    def sample(step: int) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return step + 1

    phase = Phase(sample, lambda step: None, seconds=0.001)
    phase._created_at = -math.inf
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(kind, match="own"):
            phase.start()
            while True:
                time.sleep(0.01)
        assert not phase._stopped.is_set()
    finally:
        phase.stop()
        signal.signal(signal.SIGUSR1, before)


def test_an_error_of_its_own_ends_the_watch_alone() -> None:
    phase = Phase(lambda step: 1 // 0, lambda step: None, seconds=0.5)
    phase._count_one()
    assert phase._stopped.is_set()


def test_threads_do_not_sample_at_once() -> None:
    seen: list[int] = []

    def sample(step: int) -> int:
        seen.append(step)
        if len(seen) < 3:
            other = threading.Thread(target=phase._count_one)
            other.start()
            other.join()
        return step + 1

    phase = Phase(sample, lambda step: None, seconds=0.5)
    phase._count_one()
    assert seen == [1]


def test_a_pending_call_of_the_main_thread_outlives_its_phase() -> None:
    waits: list[Any] = []

    def train() -> None:
        phase = Phase(lambda step: step + 1, lambda step: None, seconds=0.001)
        phase._created_at = -math.inf
        phase.start()
        while phase._pending not in waiting:
            time.sleep(0.001)
        phase.stop()
        with phase._clock:
            # The clock's thread has ended.
            pass
        waits.append(weakref.ref(phase._pending))
        del phase
        gc.collect()
        waits.append(waits[0]())

    thread = threading.Thread(target=train)
    thread.start()
    # The main thread waits here without finishing an instruction.
    thread.join()
    assert waits[1] is not None


def test_a_compiled_step_is_counted_and_its_sample_is_not_compiled() -> None:
    compiled: list[bool] = []

    def sample(step: int) -> int:
        compiled.append(torch.compiler.is_compiling())
        return step + 1

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    phase = Phase(sample, lambda step: None, seconds=0.5)
    phase.start()
    try:
        step = torch.compile(lambda: optimizer.step(), backend="eager")
        for _ in range(3):
            step()
    finally:
        phase.stop()
    # The clock may also count while the first step is slow.
    assert len(compiled) >= 3 and not any(compiled)


async def fetched(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_a_followed_coroutine_function_stays_one_and_counts_at_its_end() -> None:
    async def calls() -> None:
        found = sys.modules[__name__].fetched
        assert inspect.iscoroutinefunction(found)
        started = found(3)
        assert watch.report().samples == 0
        assert await started == 3

    with Watch(at=f"{__name__}:fetched") as watch:
        asyncio.run(calls())
    assert watch.report().samples == 1


def test_a_followed_function_is_also_counted_if_a_dict_holds_it_and_put_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    original, routes = fetched, {"/": fetched}
    with Watch(at=f"{__name__}:fetched") as watch:
        assert asyncio.run(routes["/"](3)) == 3
    assert watch.report().samples == 1 and not caplog.messages
    assert routes["/"] is original is sys.modules[__name__].fetched
    assert vars(original) == {}


def test_a_followed_function_that_is_never_called_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    call = [fetched][0]
    with Watch(at=f"{__name__}:fetched"):
        asyncio.run(call(3))
    [message] = caplog.messages
    assert message.startswith(f"at={__name__}:fetched was never called through its name. Name a function ")


class Methods:
    calls: ClassVar[list[int]] = []

    def plain(self, value: int) -> None:
        self.calls.append(value)

    @staticmethod
    def static(value: int) -> None:
        Methods.calls.append(value)

    @classmethod
    def of_class(cls, value: int) -> None:
        cls.calls.append(value)


class Heir(Methods):
    pass


HEIR = Heir()


@pytest.mark.parametrize("name", ["plain", "static", "of_class"])
@pytest.mark.parametrize("owner", ["Methods", "Heir", "HEIR"])
def test_a_followed_function_is_called_as_before_and_put_back(owner: str, name: str) -> None:
    before = dict(vars(Methods)), dict(vars(Heir)), dict(vars(HEIR))
    getattr(HEIR, name)(1)
    for _ in range(2):
        with Watch(at=f"{__name__}:{owner}.{name}") as watch:
            called = HEIR if owner == "HEIR" else (Methods if owner == "Methods" else Heir)()
            getattr(called, name)(2)
            getattr(called, name)(3)
        assert watch._phase is not None and watch._phase._count == 2
    assert Methods.calls == [1, 2, 3, 2, 3]
    assert (dict(vars(Methods)), dict(vars(Heir)), dict(vars(HEIR))) == before
    Methods.calls.clear()
