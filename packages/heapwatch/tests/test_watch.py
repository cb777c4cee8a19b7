"""A watch reports growing objects of a program, and distinguishes filling from leaking."""

import itertools
import json
import math
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heapwatch import UsageError, Watch, no_growth, track
from heapwatch.watch.allocations import NewestAllocations
from heapwatch.watch.report import WATCH_HTML, WATCH_JSON, write_report

from .watching import FAST, KB, feed, watched

HELD: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    yield
    HELD.clear()


def test_what_is_held_for_ever_is_a_leak_and_has_a_name(caplog: pytest.LogCaptureFixture) -> None:
    HELD["history"] = []
    watch = watched(lambda step: HELD["history"].append(np.empty(200 * KB, np.uint8)))
    assert watch.verdict == "leak"
    [finding] = watch.findings
    assert f"module {__name__}.HELD['history'][*] holds" in finding.text(verbose=True)
    details = r"\(list, \d+ arrays, test_watch\.py:36 and test_watch\.py:\d+\)"
    growth = r"grows: [\d.]+ MB, \+200\.0 kB per step\."
    assert re.search(rf"\n  {__name__}\.HELD\['history'\] {details} {growth}", finding.text())
    assert re.search(r"memory runs out in [\d,.]+ h\b", finding.text())
    assert "per 1,000 steps" in finding.text()
    # The first and the final report are the same.
    assert caplog.messages == [finding.text()]


def test_a_dict_that_grows_says_how_its_entries_are_keyed() -> None:
    HELD["cache"] = {}
    watch = watched(lambda step: HELD["cache"].update({torch.zeros(1): np.empty(200 * KB, np.uint8)}))
    [finding] = watch.findings
    assert re.search(r"HELD\['cache'\] \(dict, \d+ arrays by tensor", finding.text())


def test_a_cache_that_is_full_has_ended_and_one_that_grows_again_is_a_leak_for_good() -> None:
    HELD["cache"] = []

    def grow(step: int) -> None:
        if step < 100 or 260 <= step < 400:
            HELD["cache"].append(np.empty(200 * KB, np.uint8))

    watch = watched(grow, 100)
    assert watch.verdict == "leak"
    feed(watch, grow, range(100, 260))
    assert watch.verdict == "flat" and "it has ended by step" in "\n".join(watch.report().lines())
    feed(watch, grow, range(260, 560))
    assert watch.verdict == "leak" and "it has ended" not in "\n".join(watch.report().lines())


def test_a_buffer_that_is_emptied_has_ended_and_one_that_grows_beyond_it_is_a_leak_for_good() -> None:
    HELD["buffer"], HELD["kept"] = [], []

    def fill(step: int) -> None:
        if step % 100 == 0:
            HELD["buffer"].clear()
        if step >= 400:
            HELD["kept"].append(np.empty(200 * KB, np.uint8))
        HELD["buffer"].append(np.empty(200 * KB, np.uint8))

    watch = watched(fill, 100)
    assert watch.verdict == "leak"
    # One of the next tests of the trend finds that the memory was released.
    feed(watch, fill, range(100, 120))
    verdicts = set[str]()
    for step in range(120, 400):
        feed(watch, fill, range(step, step + 1))
        verdicts.add(watch.verdict)
    assert verdicts <= {"flat", "undecided"} and "it has ended" in "\n".join(watch.report().lines())
    feed(watch, fill, range(400, 700))
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


@pytest.mark.parametrize("verdict", ["filling", "leak"])
def test_containers_in_a_list_fill_together_unless_their_number_grows(verdict: str) -> None:
    HELD["frames"] = [deque(maxlen=100_000) for _ in range(3)]

    def grow(step: int) -> None:
        if verdict == "leak":
            HELD["frames"].insert(0, deque([np.empty(200 * KB, np.uint8)], maxlen=100_000))
            return
        # The last one remains empty.
        for frames in HELD["frames"][:-1]:
            frames.append(np.empty(100 * KB, np.uint8))

    assert watched(grow, 80).verdict == verdict


@pytest.mark.parametrize("make", [lambda: [None] * 2_000, lambda: np.zeros(2_000, object)])
def test_a_ring_that_is_allocated_in_advance_is_filling(make: Any) -> None:
    HELD["ring"] = ring = make()
    watch = watched(lambda step: ring.__setitem__(step, np.empty(200 * KB, np.uint8)), 80)
    [finding] = watch.findings
    assert finding.verdict.value == "filling"
    assert re.search(r"\d\d of 2,000 \(allocated\), full in about 1,\d{3} steps", finding.text())


def test_a_list_that_ends_with_none_is_no_ring() -> None:
    HELD["history"] = []
    watch = watched(lambda step: HELD["history"].extend([np.empty(200 * KB, np.uint8), None]), 80)
    assert watch.verdict == "leak"


@pytest.mark.parametrize("verdict", ["filling", "leak"])
def test_a_shared_block_that_is_touched_for_the_first_time_is_filling_unless_blocks_are_added(
    verdict: str,
) -> None:
    blocks = [SharedMemory(create=True, size=400 * 200 * KB)]

    def grow(step: int) -> None:
        if verdict == "leak":
            blocks.append(SharedMemory(create=True, size=200 * KB))
        start = 0 if verdict == "leak" else step * 200 * KB
        memory = blocks[-1].buf
        assert memory is not None
        memory[start : start + 200 * KB] = bytes(200 * KB)

    watch = watched(grow, 80)
    for each in blocks:
        each.close()
        each.unlink()
    assert watch.verdict == verdict
    [text] = [each.text() for each in watch.findings if each.resource == "shared memory"]
    assert ("is used for the first time: at most" in text) is (verdict == "filling")


def test_a_leak_beside_reference_cycles_has_a_name() -> None:
    HELD["history"] = []

    def grow(step: int) -> None:
        HELD["history"].append(np.empty(100 * KB, np.uint8))
        cycle: list[Any] = [np.empty(200 * KB, np.uint8)]
        cycle.append(cycle)

    watch = watched(grow, 200)
    assert [each.verdict.value for each in watch.findings] == ["collectable", "leak"]
    assert "HELD['history'] (list, " in watch.findings[1].text()


def test_steps_that_restart_with_each_epoch_are_counted_on() -> None:
    HELD["history"] = []

    def grow(step: int) -> None:
        HELD["history"].append(np.empty(200 * KB, np.uint8))

    watch = watched(grow, 20)
    for _ in range(11):
        feed(watch, grow, range(20))
    assert watch.verdict == "leak"
    assert watch.report().steps == 239


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
    filled = "56 of 100,000 (maxlen), full in about 99,944 steps"
    assert f"module {__name__}.HELD['replay'] has {filled}" in finding.sources[0]
    assert ".HELD['replay'] (deque, 56 arrays, test_watch.py:" in finding.text()
    assert f") is filling: {filled}." in finding.text()


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


KEPT: list[np.ndarray] = []
MOST = 160


def keep(step: np.ndarray) -> None:
    if len(KEPT) >= MOST:
        KEPT.pop(0)
    KEPT.append(step)


def test_a_variable_of_a_module_is_filling_up_to_the_number_in_its_function() -> None:
    KEPT.clear()
    watch = watched(lambda step: keep(np.empty(200 * KB, np.uint8)), 100)
    assert watch.verdict == "filling" and " of 160 (160), full in about" in watch.findings[0].text()
    KEPT.clear()


def test_a_number_that_no_code_compares_with_the_length_is_no_capacity() -> None:
    HELD["ring"] = Ring(160)
    watch = watched(lambda step: HELD["ring"].forgotten.append(np.empty(200 * KB, np.uint8)), 100)
    assert watch.verdict == "leak" and "Ring.forgotten (list, " in watch.findings[0].text()


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


def test_a_leak_is_named_although_the_optimizer_pauses_for_rollouts() -> None:
    HELD["rollouts"] = []
    watch = paused()
    grow = lambda kind: HELD["rollouts"].append(np.empty(200 * KB, np.uint8))  # noqa: E731
    play(watch, grow, [("update", 1)] + 6 * [("pause", 24), ("update", 16)])
    assert watch.verdict == "leak" and "HELD['rollouts'][*] holds" in watch.findings[0].sources[0]


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
    assert "HELD['data'][*] holds" in watch.findings[0].sources[0]
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
        r"sampling took [\d.]+% of the time, heap searches took [\d.]+ s \(2 of them\), "
        r"the longest pause was [\d.]+ s\.$",
        report.lines()[0],
    )
    assert shown is not None
    # A pause is a sample with its searches, and none of the two searches took all the time.
    assert report.search_seconds / 2 <= report.longest_pause <= report.search_seconds + report.own_seconds


@pytest.mark.parametrize("is_freed", [False, True])
def test_a_search_that_is_due_at_the_end_is_made_unless_the_memory_is_freed(
    is_freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first search finds no holder in the user's modules, and the next test of the samples does not come.
    monkeypatch.setattr(json, "hidden", [], raising=False)
    with Watch(seconds=FAST, share=math.inf, threshold_mb=2.0) as watch:
        feed(watch, lambda step: json.hidden.append(np.empty(200 * KB, np.uint8)), range(60))  # pyright: ignore
        assert watch.verdict == "undecided"
        if is_freed:
            json.hidden.clear()  # pyright: ignore
    named = [text for each in watch.findings for text in each.sources if "module json.hidden[*]" in text]
    assert bool(named) is not is_freed and watch.verdict == ("undecided" if is_freed else "leak")


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
        with pytest.raises(UsageError, match="already exists"):
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
    for name in ("buffer", "total"):
        with pytest.raises(UsageError, match=rf"`{name}` already exists\. .* such as `my/{name}`"):
            track(name, dict)
    for name in ("", "/buffer", "buffer/", "a//b"):
        with pytest.raises(UsageError, match="must be words"):
            track(name, dict)
    with pytest.raises(
        UsageError, match=r"track\('list'\) needs a function that returns the object, but got a list"
    ):
        track("list", [])  # pyright: ignore[reportArgumentType]
    watch = Watch()
    watch.track("buffer", dict)
    with pytest.raises(UsageError, match="already exists"):
        watch.__enter__()
    with Watch() as watch:
        track("other", list)
    assert [*watch._components] == ["other"]


def test_few_samples_are_no_verdict_and_a_calm_program_is_flat() -> None:
    assert watched(lambda step: None, 20).verdict == "undecided"
    assert watched(lambda step: None).verdict == "flat"


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


def test_a_last_look_right_after_another_one_keeps_the_lines_of_that() -> None:
    trace, kept = NewestAllocations(), list[bytearray]()
    for _ in range(16):
        trace.sample()
        kept.append(bytearray(100 * KB))
    lines = trace.lines
    assert any(f"{__file__}:" in line for line in lines)
    noise = ["a" * size for size in range(1000, 2000)]
    trace.sample()
    trace.stop()
    assert noise and trace.lines == lines


def test_a_watch_does_not_grow_itself() -> None:
    steps = itertools.count()
    with Watch(seconds=0.0, share=1.0) as watch:

        def take() -> None:
            for _ in range(10):
                watch._take(next(steps))

        # The series has at most 512 rows. After 4,096 samples it keeps every 16th, so it hardly grows here.
        for _ in range(420):
            take()
        no_growth(steps=24)(take)()
    assert watch.report().samples == 4_200 + 360
