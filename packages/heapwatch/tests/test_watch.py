"""An unmodified program behaves the same under `heapwatch`, and its leaks are attributed to a holder."""

import gc
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections import deque
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from heapwatch import UsageError, Watch, no_growth, track
from heapwatch.watch import command
from heapwatch.watch.allocations import NewestAllocations
from heapwatch.watch.phase import _WAITING as waiting
from heapwatch.watch.phase import Phase
from heapwatch.watch.report import WATCH_HTML, WATCH_JSON, write_report

# The tests start programs that import torch, on a machine that may be busy.
pytestmark = pytest.mark.timeout(1800)
KB = 1000
HELD: dict[str, Any] = {}
FAST = 1e-6


@pytest.fixture(autouse=True)
def nothing_held() -> Any:
    yield
    HELD.clear()


def watched(grow: Any, samples: int = 160, **options: Any) -> Watch:
    with Watch(seconds=FAST, share=math.inf, threshold_mb=2.0, **options) as watch:
        feed(watch, grow, range(samples))
    return watch


def feed(watch: Watch, grow: Any, steps: range) -> None:
    for step in steps:
        grow(step)
        # A sample is due after each step.
        watch._stride, watch._next_step, watch._distance = 1, step, 0.0
        # The load of the machine must not matter.
        watch._sampled_at = time.perf_counter()
        watch.sample(step)


def test_what_is_held_for_ever_is_a_leak_and_has_a_name(caplog: pytest.LogCaptureFixture) -> None:
    HELD["history"] = []
    watch = watched(lambda step: HELD["history"].append(np.empty(200 * KB, np.uint8)))
    assert watch.verdict == "leak"
    [finding] = watch.findings
    assert f"module {__name__}.HELD['history'][*] holds" in finding.text()
    assert re.search(r"nothing is left in [\d,.]+ h\b", finding.text())
    assert "per 1,000 steps" in finding.text()
    # The first and the final report are the same.
    assert caplog.messages == [finding.text()]
    assert re.search(r"\.HELD\['history'\]: list of \d+ ndarray, \d+ more", finding.text())


def test_a_dict_that_grows_says_how_its_entries_are_keyed() -> None:
    HELD["cache"] = {}
    watch = watched(lambda step: HELD["cache"].update({torch.zeros(1): np.empty(200 * KB, np.uint8)}))
    [finding] = watch.findings
    assert re.search(r"HELD\['cache'\]: dict of \d+ by Tensor, \d+ more", finding.text())


def test_a_cache_that_is_full_has_ended_and_one_that_grows_again_is_a_leak_for_good() -> None:
    HELD["cache"] = []

    def grow(step: int) -> None:
        if step < 100 or 260 <= step < 400:
            HELD["cache"].append(np.empty(200 * KB, np.uint8))

    watch = watched(grow, 100)
    assert watch.verdict == "leak"
    feed(watch, grow, range(100, 260))
    assert watch.verdict == "flat" and "it has ended: flat over" in "\n".join(watch.report().lines())
    feed(watch, grow, range(260, 560))
    assert watch.verdict == "leak" and "it has ended" not in "\n".join(watch.report().lines())


def test_growth_before_a_new_stage_stays_growth_until_the_new_one_is_judged() -> None:
    HELD["history"] = []

    def grow(step: int) -> None:
        HELD["history"].append(np.empty(200 * KB, np.uint8))

    watch = watched(grow, 60)
    # This simulates a holder that was not found yet.
    watch._found.clear()
    watch.restart(60)
    assert watch.verdict == "undecided"
    # 12 of these samples are skipped.
    feed(watch, grow, range(61, 91))
    assert watch.verdict == "undecided"
    watch = watched(lambda step: None, 60)
    watch.restart(60)
    assert watch.verdict == "flat"


def test_samples_that_cost_much_are_farther_apart_but_the_first_ones_do_not_count() -> None:
    watch = Watch(seconds=0.5, share=0.01)
    watch._costs.extend([0.2] * 3 + [0.02] * 4)
    watch.restart(0)
    assert watch._distance == 0.5
    watch._costs.append(0.02)
    watch.restart(0)
    assert watch._distance == 2.0


def test_a_store_with_a_capacity_is_filling_and_says_how_long_it_will() -> None:
    HELD["replay"] = deque(maxlen=100_000)
    watch = watched(lambda step: HELD["replay"].append(np.empty(200 * KB, np.uint8)))
    assert watch.verdict == "filling"
    [finding] = watch.findings
    assert f"module {__name__}.HELD['replay'] has 56 of 100,000 (maxlen)" in finding.text()
    assert "full in about 99,944 steps" in finding.text()


def test_a_leak_beside_what_fills_is_a_leak_and_comes_first() -> None:
    HELD["replay"], HELD["history"] = deque(maxlen=100_000), []

    def grow(step: int) -> None:
        HELD["replay"].append(np.empty(200 * KB, np.uint8))
        HELD["history"].append(np.empty(80 * KB, np.uint8))

    watch = watched(grow)
    assert watch.verdict == "leak"
    assert "HELD['history'][*] holds" in watch.findings[0].sources[0]
    assert "maxlen" in watch.findings[0].sources[1]


class Ring:
    def __init__(self, limit: int) -> None:
        self.limit, self.steps, self.forgotten = limit, list[np.ndarray](), list[np.ndarray]()

    def add(self, step: np.ndarray) -> None:
        if len(self.steps) >= self.limit:
            self.steps.pop(0)
        self.steps.append(step)


def test_a_store_is_filling_up_to_the_number_that_its_code_compares_with_its_length() -> None:
    HELD["ring"] = Ring(160)
    watch = watched(lambda step: HELD["ring"].add(np.empty(200 * KB, np.uint8)), 100)
    assert watch.verdict == "filling" and " of 160 (limit), full in about" in watch.findings[0].text()


def test_a_number_that_no_code_compares_with_the_length_is_no_capacity() -> None:
    HELD["ring"] = Ring(160)
    watch = watched(lambda step: HELD["ring"].forgotten.append(np.empty(200 * KB, np.uint8)), 100)
    assert watch.verdict == "leak" and ".HELD['ring'].forgotten[*] holds" in watch.findings[0].text()


def test_a_store_that_grows_beyond_its_capacity_is_a_leak() -> None:
    HELD["ring"] = Ring(20)
    watch = watched(lambda step: HELD["ring"].steps.append(np.empty(200 * KB, np.uint8)), 100)
    assert watch.verdict == "leak"


def test_a_holder_that_rests_gives_way_to_the_one_that_grows_now() -> None:
    HELD["first"], HELD["second"] = [], []

    def grow(step: int) -> None:
        HELD["first" if step < 60 else "second"].append(np.empty(200 * KB, np.uint8))

    watch = watched(grow, 60)
    assert "HELD['first'][*] holds" in watch.findings[0].sources[0]
    feed(watch, grow, range(60, 160))
    [finding] = watch.findings
    assert "HELD['second'][*] holds" in finding.sources[0] and watch.verdict == "leak"


def play(watch: Watch, grow: Any, phases: list[tuple[str, int]], start: int = 0) -> int:
    """Let a program load, update and pause, with growth for each 0.5 s. Return the last count."""
    assert watch._phase is not None
    silent = 0.0
    for kind, times in phases:
        for _ in range(times):
            grow(kind)
            if kind in ("pause", "drop"):
                silent += 0.5
                continue
            start += 1
            if kind == "update" and watch._phase.is_timed:
                watch._phase._begin_steps(start)
            watch._stride, watch._next_step, watch._distance = 1, start, 0.0
            watch._sampled_at, silent = time.perf_counter() - silent, 0.0
            watch._sample_counted(start)
    return start


def paused() -> Watch:
    """Return an automatic watch before the first optimizer step."""
    return Watch(seconds=FAST, share=math.inf, threshold_mb=2.0, automatic=True)


def test_a_leak_is_named_although_the_optimiser_pauses_for_rollouts() -> None:
    HELD["rollouts"] = []
    watch = paused()
    grow = lambda kind: HELD["rollouts"].append(np.empty(200 * KB, np.uint8))  # noqa: E731
    play(watch, grow, [("update", 1)] + 6 * [("pause", 24), ("update", 16)])
    assert watch.verdict == "leak" and "HELD['rollouts'][*] holds" in watch.findings[0].text()


def test_data_collected_in_rollouts_and_dropped_in_updates_is_not_a_leak() -> None:
    HELD["rollout"] = []
    watch = paused()

    def grow(kind: str) -> None:
        if kind == "drop":
            HELD["rollout"].clear()
        HELD["rollout"].append(np.empty(200 * KB, np.uint8))

    play(watch, grow, [("update", 30)] + 6 * [("drop", 1), ("pause", 12), ("update", 30)])
    assert watch.verdict in ("flat", "undecided") and not watch.findings


def test_what_is_loaded_before_the_first_update_is_no_leak_however_long_it_takes() -> None:
    HELD["data"] = []
    watch = paused()

    def grow(kind: str) -> None:
        if kind == "load":
            HELD["data"].append(np.empty(200 * KB, np.uint8))

    loaded = play(watch, grow, [("load", 600)])
    assert watch.verdict == "undecided" and "--at package.module:function" in watch.report().lines()[-1]
    # A program without updates also reports it.
    assert "HELD['data'][*] holds" in watch.findings[0].text()
    play(watch, grow, [("update", 260)], loaded)
    assert watch.verdict == "flat" and not watch.findings


def test_loading_between_two_phases_of_updates_is_no_leak() -> None:
    HELD["data"] = []
    watch = paused()

    def grow(kind: str) -> None:
        if kind == "pause":
            HELD["data"].append(np.empty(200 * KB, np.uint8))

    play(watch, grow, [("update", 30), ("pause", 90), ("update", 130)])
    assert watch.verdict in ("flat", "undecided") and not watch.findings


def test_a_report_separates_samples_from_searches_by_the_wall_clock() -> None:
    HELD["history"] = []
    began = time.perf_counter()
    watch = watched(lambda step: HELD["history"].append(np.empty(200 * KB, np.uint8)), 60)
    report = watch.report()
    assert report.searches == 2 and report.search_seconds > 0 < report.own_seconds
    assert report.search_seconds + report.own_seconds <= time.perf_counter() - began
    shown = re.search(
        r"sampling took ([\d.]+)% of the time, heap searches took [\d.]+ s \(2 of them\)", report.lines()[0]
    )
    assert shown is not None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_that_was_asked_for_at_once_is_filling_while_it_is_touched() -> None:
    HELD["replay"] = np.empty((400, 1000 * KB), np.uint8)

    def touch(step: int) -> None:
        HELD["replay"][step] = 1

    watch = watched(touch)
    assert watch.verdict == "filling"
    assert "used for the first time" in watch.findings[0].text()


def test_a_tracked_component_is_judged_by_its_name_and_logged() -> None:
    HELD["buffer"] = [np.zeros(100)]
    track("buffer", lambda: HELD["buffer"])
    with Watch() as watch:
        with pytest.raises(UsageError, match="exists already"):
            track("buffer", list)
        watch.sample(0)
        tags = watch.metrics(per="epoch")
        assert tags["memory/buffer/size_mb"] == pytest.approx(800 / 1e6)
        assert tags["memory/buffer/growth_mb_per_epoch"] == 0
    track("buffer", lambda: HELD["buffer"], threshold_mb=100.0)
    watch = watched(lambda step: HELD["buffer"].append(np.empty(200 * KB, np.uint8)))
    # The judged samples contain 19 MB, all accounted for.
    assert watch.verdict == "flat"
    # The first call counts from the start.
    assert watch.metrics()["memory/buffer/growth_mb_per_report"] == pytest.approx(159 * 0.2)
    # Later calls count from the previous call.
    assert watch.metrics()["memory/buffer/growth_mb_per_report"] == 0
    watch = watched(lambda step: HELD["buffer"].append(np.empty(200 * KB, np.uint8)))
    # The component belonged to the other watch.
    assert "buffer" not in watch.metrics()
    assert watch.verdict == "leak"


@pytest.mark.parametrize("wrong", [{"share": 0}, {"seconds": "1"}, {"threshold_mb": -1}])
def test_a_number_out_of_its_range_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(wrong))} must be "):
        Watch(**wrong)


def test_a_wrong_name_is_refused_where_it_is_given_and_leaves_no_watch_behind() -> None:
    track("buffer", list)
    for name, sentence in (("buffer", "exists already"), ("a//b", "named by words")):
        with pytest.raises(UsageError, match=sentence):
            track(name, dict)
    with pytest.raises(
        UsageError, match=r"track\('list'\) needs a function that returns the object, but got a list"
    ):
        track("list", [])  # pyright: ignore[reportArgumentType]
    watch = Watch()
    watch.track("buffer", dict)
    with pytest.raises(UsageError, match="exists already"):
        watch.__enter__()
    with Watch() as watch:
        track("other", list)
    assert [*watch._components] == ["other"]


def test_few_samples_are_no_verdict_and_a_calm_program_is_flat() -> None:
    assert watched(lambda step: None, 20).verdict == "undecided"
    assert watched(lambda step: None).verdict == "flat"


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
        phase._clock.join()
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


def test_two_programs_write_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, replace = Watch().report(), Path.replace

    def after_another(part: Path, to: Path) -> Path:
        monkeypatch.undo()
        monkeypatch.setattr(os, "getpid", lambda: -1)
        write_report(report, tmp_path)
        return replace(part, to)

    monkeypatch.setattr(Path, "replace", after_another)
    write_report(report, tmp_path)
    assert sorted(os.listdir(tmp_path)) == [WATCH_HTML, WATCH_JSON]


def test_a_report_that_cannot_be_written_raises_nothing() -> None:
    with Watch(folder=f"{__file__}/report") as watch:
        watch.sample(0)
    assert watch.report().samples == 1


TRAIN = """
    import hashlib, json, os, sys, time
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    kept = []
    class Trainer:
        def update(self):
            loss = model(torch.randn(16, 64)).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            if "leak" in sys.argv:
                kept.append(bytearray(60_000))
    trainer = Trainer()
    for step in range(int(sys.argv[1])):
        trainer.update()
    while "leak" in sys.argv and json.load(open("report/watch.json"))["verdict"] != "leak":
        trainer.update()
        time.sleep(0.002)
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    weights = model.weight.detach().numpy().tobytes()
    print(hashlib.sha256(weights).hexdigest(), __name__, sys.argv[1:], __file__)
    sys.exit(3)
"""


def write(folder: Path, text: str, name: str = "train.py") -> None:
    (folder / name).write_text(textwrap.dedent(text))


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)


WATCH = ("-m", "heapwatch", "--report", "report", "--share", "0.5", "--seconds", "0.002")


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report" / WATCH_JSON).read_text())


def test_a_watched_program_behaves_as_without_a_watch(tmp_path: Path) -> None:
    write(tmp_path, TRAIN)
    alone, seen = python(tmp_path, "train.py", "400"), python(tmp_path, *WATCH, "train.py", "400")
    assert (seen.stdout, seen.returncode) == (alone.stdout, alone.returncode) and alone.returncode == 3
    report = read(tmp_path)
    assert report["samples"] > 1 and report["steps"] > 1 and report["verdict"] != "leak"
    assert "polyline" in (tmp_path / "report" / WATCH_HTML).read_text()


def test_a_leak_fails_where_asked_and_names_holder_and_line(tmp_path: Path) -> None:
    write(tmp_path, TRAIN)
    seen = python(tmp_path, *WATCH, "--trace", "--fail-on-leak", "-m", "train", "9", "leak")
    report = read(tmp_path)
    assert seen.returncode == 1 and report["verdict"] == "leak", seen.stderr
    assert "module __main__.kept holds" in report["findings"][0]["sources"][0]
    assert any("train.py:14" in line for line in report["newest_allocations"])


def test_a_program_without_optimiser_is_watched_by_the_clock_and_kill_leaves_a_report(tmp_path: Path) -> None:
    # The growth has a holder but is not called a leak, because it may be loading.
    write(
        tmp_path,
        """
        import time
        kept = []
        while True:
            kept.append(bytearray(100_000))
            time.sleep(0.01)
        """,
    )
    program = subprocess.Popen([sys.executable, *WATCH[:-1], "0.05", "train.py"], cwd=tmp_path)
    try:
        while not (tmp_path / "report" / WATCH_JSON).exists() or not read(tmp_path)["findings"]:
            time.sleep(0.1)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
    report = read(tmp_path)
    assert report["unit"] == "steps of a clock (no optimiser steps)" and report["verdict"] == "undecided"
    [finding] = report["findings"]
    assert finding["verdict"] == "growing" and "module __main__.kept holds" in finding["sources"][0]


USUAL = """
    import json, time
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(64, 8)
    data, kept = [], []

    def update(batch=None):
        optimizer.zero_grad()
        model(torch.randn(8, 64) if batch is None else batch).mean().backward()
        optimizer.step()

    def is_seen(verdict):
        return json.load(open("report/watch.json"))["verdict"] == verdict

    def load(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            data.append(torch.ones(25_000))
            time.sleep(0.01)
"""
LOADS_AND_PAUSES = """
    load(5)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    update()
    load(5)
    while not is_seen("flat"):
        update()
        time.sleep(0.01)
"""
HAS_WORKERS = """
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while not is_seen("flat"):
        for batch in DataLoader(torch.randn(800, 64), 8, num_workers=2):
            update(batch)
"""
LEAKS_IN_ROLLOUTS = """
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while not is_seen("leak"):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            kept.append(torch.ones(25_000))
            time.sleep(0.05)
        for _ in range(10):
            update()
"""


@pytest.mark.parametrize("program", [LOADS_AND_PAUSES, HAS_WORKERS], ids=["loads and pauses", "has workers"])
def test_a_program_that_loads_before_it_trains_is_flat(program: str, tmp_path: Path) -> None:
    write(tmp_path, USUAL + program)
    seen = python(tmp_path, *WATCH, "--fail-on-leak", "train.py")
    assert seen.returncode == 0 and not read(tmp_path)["findings"], seen.stderr


def test_a_program_whose_optimiser_pauses_for_rollouts_leaks_in_them(tmp_path: Path) -> None:
    write(tmp_path, USUAL + LEAKS_IN_ROLLOUTS)
    seen = python(tmp_path, *WATCH, "--fail-on-leak", "train.py")
    assert seen.returncode == 1, seen.stderr
    assert "module __main__.kept[*] holds" in read(tmp_path)["findings"][0]["sources"][0]


@pytest.mark.parametrize("how", [WATCH[:2], (str(Path(sys.executable).with_name("heapwatch")),)])
def test_an_error_reads_as_without_us(how: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, "def f():\n    raise ValueError('own')\nf()\n")
    alone, seen = python(tmp_path, "train.py"), python(tmp_path, *how, *WATCH[2:], "train.py")
    assert seen.returncode == alone.returncode == 1
    own = [line for line in seen.stderr.splitlines() if not line.startswith("heapwatch:")]
    assert "\n".join(own).replace(f"{tmp_path}/", "") == alone.stderr.rstrip().replace(f"{tmp_path}/", "")
    assert os.listdir(tmp_path / "report")


def test_a_program_may_change_folder_close_its_errors_and_name_a_module_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "def update():\n    pass\n", "beside.py")
    write(
        tmp_path,
        """
        import logging, os, sys
        import beside
        beside.update()
        os.chdir("/")
        sys.stderr.close()
        logging.getLogger("heapwatch").error("of the watch")
        print(sys.argv[1:])
        """,
    )
    seen = python(tmp_path, *WATCH, "--at", "beside:update", "train.py", "a", "--", "--x")
    assert (seen.returncode, seen.stdout) == (0, "['a', '--', '--x']\n"), seen.stderr
    assert read(tmp_path)["samples"] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "No program is given"),
        (("no.py",), "There is no script no.py"),
        (("-m", "no.module"), "-m no.module finds no module to run"),
        # This package has no __main__.
        (("-m", "email"), "-m email finds no module to run"),
        # This module has no Python code.
        (("-m", "sys"), "-m sys finds no module to run"),
        (("-m", "this.py"), "-m this.py finds no module to run"),
        (("--at", "x:y", __file__), "--at=x:y is not a function (there is no module x)"),
        (("--at", "this", __file__), "--at=this is not a function"),
        (("--at", "this.py:c", __file__), "--at=this.py:c is not a function (there is no module this.py)"),
        (("--at", f"{Path(__file__).stem}:write", __file__), "(it is in the program itself"),
        (("--at", "math:pi", __file__), "--at=math:pi is not a function (it is of type float)"),
        (("--at", "fractions:Fraction", __file__), "is not a function (it is of type ABCMeta)"),
        (("--report", f"{__file__}/x", __file__), "The report cannot be written"),
        (("--share", "2", __file__), "--share must be over 0 and at most 1, got 2.0"),
        (("--seconds", "0", __file__), "--seconds must be over 0, got 0.0"),
    ],
)
def test_wrong_use_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["heapwatch", *arguments])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        command.main()
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and sentence in shown and shown.count("\n") == 1
    # No files remain, and the module was not executed.
    assert not os.listdir(tmp_path) and "this" not in sys.modules


def test_at_is_named_as_it_was_typed_and_a_module_that_fails_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "import sys\nsys.exit('own')\n", "ends_at_once.py")
    monkeypatch.syspath_prepend(tmp_path)
    for place, why in (
        ("x:y", "there is no module x"),
        ("ends_at_once:f", "SystemExit: own (ends_at_once.py, line 2)"),
    ):
        with pytest.raises(UsageError, match=re.escape(f"at={place} is not a function ({why})")) as raised:
            Watch(at=place)
        assert str(raised.value).startswith("at=")


def test_a_last_look_right_after_another_one_keeps_the_lines_of_that() -> None:
    trace, kept = NewestAllocations(), list[bytearray]()
    for _ in range(16):
        trace.sample()
        kept.append(bytearray(100 * KB))
    lines = trace.lines()
    assert any(f"{__file__}:" in line for line in lines)
    noise = ["a" * size for size in range(1000, 2000)]
    trace.sample()
    trace.stop()
    assert noise and trace.lines() == lines


def test_a_watch_does_not_grow_itself() -> None:
    steps = itertools.count()
    with Watch(seconds=0.0, share=1.0) as watch:

        def take() -> None:
            for _ in range(10):
                watch._take(next(steps))

        # The series is full at 512 samples.
        for _ in range(60):
            take()
        no_growth(steps=24)(take)()
    assert watch.report().samples == 600 + 360
