"""The tracker follows sizes, keeps no references, and does not grow."""

import gc
import sys
import weakref
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from heapwatch.counters.glibc import in_use_bytes, in_use_source
from heapwatch.leaks.table import ComponentRow, MemoryReport
from heapwatch.leaks.tracker import MemoryTracker
from heapwatch.leaks.verdict import TrendClass
from heapwatch.objects.census import Component
from torch import nn

from .fresh import in_a_fresh_process

INTERVAL = 1000
BASE_MB = 8.0
TABLE = """\
Memory at step 10,000, MB = 1e6 bytes
object                       MB  pinned/shown  growth  per 1,000 steps   planned  device  verdict
replay                 1,550.25          1.00   +0.00           +0.000            cpu     undecided
  replay/observations  1,550.25          1.00   +0.00           +0.000  2,000.00  cpu     undecided
views                      4.00          3.99   +1.00           +0.100            cpu     undecided
my/[bold]                  1.00          1.00   +0.00           +0.000            cpu     undecided
total                  1,555.25          1.00   +1.00           +0.100            cpu     undecided
"""


def megabytes(count: float) -> torch.Tensor:
    # The memory is never touched, so it is not resident.
    return torch.empty(int(count * 1e6), dtype=torch.uint8)


def tracker_of(threshold_mb: float = 1.0) -> MemoryTracker:
    return MemoryTracker(threshold_mb)


def row_of(report: MemoryReport, name: str) -> ComponentRow:
    (row,) = (row for row in report.rows if row.name == name)
    return row


def alarms(tracker: MemoryTracker) -> list[str]:
    return [name for name, detector in tracker.detectors().items() if detector.alarm]


def follow(tracker: MemoryTracker, store: list[Any], per_sample_mb: float, **component: Any) -> MemoryReport:
    """Take 96 samples while a store grows, and return the report."""
    for index in range(96):
        store.append(megabytes(per_sample_mb))
        tracker.sample(index * INTERVAL, {"store": Component((store,), **component)})
    return tracker.report(95 * INTERVAL)


def test_growth_is_counted_since_the_report_before_and_per_1000_steps() -> None:
    tracker, store = tracker_of(), [megabytes(BASE_MB)]
    for step, expected_growth, expected_rate in ((5000, 0.0, 0.0), (9000, 2.0, 0.5), (13_000, 2.0, 0.5)):
        tracker.sample(step, {"store": Component((store,))})
        report = tracker.report(step)
        row = row_of(report, "store")
        assert row.growth_mb == pytest.approx(expected_growth)
        assert row.growth_mb_per_1000_steps == pytest.approx(expected_rate)
        assert report.total.growth_mb == pytest.approx(expected_growth)
        store.append(megabytes(2))
    assert row.size_mb == BASE_MB + 4


def test_the_first_report_counts_from_the_first_sample_of_each() -> None:
    tracker, store, late = tracker_of(), [megabytes(BASE_MB)], megabytes(5)
    components = {"store": Component((store,))}
    tracker.sample(1000, components)
    store.append(megabytes(2))
    tracker.sample(3000, components | {"late": Component((late,))})
    report = tracker.report(3000)
    assert (row_of(report, "store").growth_mb, row_of(report, "store").growth_mb_per_1000_steps) == (2.0, 1.0)
    assert (row_of(report, "late").growth_mb, report.total.growth_mb) == (0.0, 7.0)


def test_tags_carry_the_names_of_the_incident_reports() -> None:
    tracker, store = tracker_of(), [megabytes(2)]
    components = {"replay": Component(), "replay/observations": Component((store,))}
    tracker.sample(0, components)
    tracker.report(0)
    store.append(megabytes(1))
    tracker.sample(1000, components)
    assert tracker.report(1000).tags() == {
        "memory/replay/size_mb": 3.0,
        "memory/replay/growth_mb_per_report": 1.0,
        "memory/replay/observations/size_mb": 3.0,
        "memory/replay/observations/growth_mb_per_report": 1.0,
    }


def test_unplanned_growth_is_a_leak_and_raises_the_alarm() -> None:
    tracker = tracker_of()
    report = follow(tracker, [], per_sample_mb=0.1)
    assert row_of(report, "store").verdict is TrendClass.growing
    assert report.total.verdict is TrendClass.growing
    assert alarms(tracker) == ["store"]


def test_growth_below_the_threshold_is_flat() -> None:
    tracker = tracker_of(threshold_mb=20.0)
    assert row_of(follow(tracker, [], per_sample_mb=0.1), "store").verdict is TrendClass.flat
    assert alarms(tracker) == []


def test_growth_within_the_plan_is_planned_and_beyond_it_a_leak() -> None:
    tracker, store = tracker_of(), []
    tracker.sample(-INTERVAL, {"store": Component((store,))})
    tracker.report(-INTERVAL)
    filling = row_of(follow(tracker, store, per_sample_mb=0.1, planned_bytes=20_000_000), "store")
    assert (filling.verdict, filling.remark, filling.planned_mb) == (TrendClass.flat, "planned", 20.0)
    assert filling.growth_mb == pytest.approx(9.6)
    overflowing = follow(tracker_of(), [], per_sample_mb=0.1, planned_bytes=2_000_000)
    assert row_of(overflowing, "store").verdict is TrendClass.growing


def test_the_plan_of_parts_covers_only_the_parts_of_a_component() -> None:
    tracker, part, rest = tracker_of(), [], []
    for leaks, expected in ((False, TrendClass.flat), (True, TrendClass.growing)):
        for index in range(96):
            part.append(megabytes(0.1))
            if leaks:
                rest.append(megabytes(0.1))
            components = {
                "replay": Component((rest,)),
                "replay/observations": Component((part,), planned_bytes=10**9),
            }
            tracker.sample(index * INTERVAL + leaks * 96 * INTERVAL, components)
        report = tracker.report(0)
        assert row_of(report, "replay/observations").verdict is TrendClass.flat
        assert row_of(report, "replay").verdict is expected
        assert report.total.verdict is expected


def test_after_a_restart_earlier_growth_does_not_count() -> None:
    tracker, store = tracker_of(), []
    assert row_of(follow(tracker, store, per_sample_mb=0.1), "store").verdict is TrendClass.growing
    tracker.restart(95 * INTERVAL, "first update")
    for index in range(96, 96 + 60):
        tracker.sample(index * INTERVAL, {"store": Component((store,))})
    assert row_of(tracker.report(0), "store").verdict is TrendClass.flat
    assert alarms(tracker) == []


def test_a_rebound_attribute_is_tracked_and_its_old_value_is_freed() -> None:
    tracker, agent = tracker_of(), SimpleNamespace(buffer=[megabytes(1)])
    tracker.sample(0, {"buffer": Component((agent.buffer,))})
    assert row_of(tracker.report(0), "buffer").size_mb == 1.0
    gone = weakref.ref(agent.buffer[0])
    agent.buffer = [megabytes(40)]
    assert gone() is None
    tracker.sample(1000, {"buffer": Component((agent.buffer,))})
    row = row_of(tracker.report(1000), "buffer")
    assert (row.size_mb, row.growth_mb) == (40.0, 39.0)
    assert (tracker.accounted_bytes("cpu"), tracker.accounted_bytes("cuda")) == (40_000_000, 0)


def test_a_missing_component_is_reported_once() -> None:
    tracker = tracker_of()
    tracker.sample(0, {"video": Component((megabytes(5),))})
    tracker.report(0)
    tracker.sample(1000, {})
    (row,) = tracker.report(1000).rows
    assert (row.name, row.size_mb, row.growth_mb, row.remark) == ("video", 0.0, -5.0, "gone")
    tracker.sample(2000, {})
    assert tracker.report(2000).rows == ()


def test_the_table_shows_every_number_and_leaves_brackets_alone() -> None:
    base = np.zeros((1000, 3000), np.uint8)
    tracker = tracker_of()
    components = {
        "replay": Component(),
        "replay/observations": Component((megabytes(1550.25),), planned_bytes=2 * 10**9),
        "views": Component(([base[3]],)),
        "my/[bold]": Component((megabytes(1),)),
    }
    tracker.sample(0, components)
    tracker.report(0)
    components["views"] = Component(([base[3], megabytes(1)],))
    tracker.sample(10_000, components)
    assert tracker.report(10_000).table() == TABLE.rstrip()


def test_a_sampled_container_is_noted_under_the_table() -> None:
    tracker = tracker_of()
    tracker.sample(0, {"metrics": Component(({"history": [np.zeros(10) for _ in range(5000)]},))})
    assert tracker.report(0).table().splitlines()[-1] == (
        "Extrapolated from a sample: metrics[0]['history']."
    )


def test_the_tracker_keeps_nothing_alive() -> None:
    network = nn.Linear(10, 10, bias=False)
    gone = [weakref.ref(network), weakref.ref(network.weight)]
    tracker = tracker_of()
    tracker.sample(0, {"networks": Component((network,))})
    report = tracker.report(0)
    del network
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert row_of(report, "networks").size_mb == 400 / 1e6


def counts_of_2_500_samples() -> list[tuple[int, int]]:
    """Return live Python blocks and bytes in use after 500 to 2,500 samples and reports.

    The tracker is one of the measured objects.
    """
    tracker = tracker_of()

    def run(samples: range) -> tuple[int, int]:
        for index in samples:
            state = torch.zeros(10 + index % 3)
            components = {"instruments": Component((tracker,)), "state": Component((state,))}
            tracker.sample(index * INTERVAL, components)
            tracker.report(index * INTERVAL).tags()
        gc.collect()
        return sys.getallocatedblocks(), in_use_bytes()

    return [run(range(*span)) for span in pairwise((0, 500, 1000, 1750, 2500))]


def test_1_500_samples_and_reports_grow_the_process_by_nothing() -> None:
    counts = in_a_fresh_process(counts_of_2_500_samples)
    # From the second value on, the results have the same size.
    blocks, in_use = zip(*counts[1:], strict=True)
    # Dictionaries and caches of the interpreter may change by single blocks. One reference per sample would
    # be 1,500 blocks.
    assert abs(blocks[-1] - blocks[0]) <= 100
    if in_use_source().startswith("mallinfo2"):
        # A table of the interpreter may grow once. Memory retained per sample would grow in both halves, by
        # 24,000 bytes with the smallest malloc blocks of 32 bytes.
        assert min(abs(later - before) for before, later in pairwise(in_use)) <= 3_000


def test_a_report_without_news_is_a_line_and_one_with_news_is_not() -> None:
    tracker = tracker_of()
    assert tracker.report(0).summary() == "not measured before the first log line"
    assert follow(tracker, [megabytes(BASE_MB)], per_sample_mb=0.0).is_still
    store = {"store": Component((megabytes(BASE_MB),))}
    for index in range(96, 98):
        tracker.sample(index * INTERVAL, store | {"late": Component((megabytes(1),))})
    quiet = tracker.report(97 * INTERVAL)
    # `late` has only two samples, too few for a verdict.
    assert quiet.is_still
    assert quiet.summary() == "9.0 MB in 2 parts, 1 of them not judged yet"
    tracker.sample(98 * INTERVAL, store)
    # Components may come and go.
    assert tracker.report(98 * INTERVAL).is_still

    assert not follow(tracker_of(), [], per_sample_mb=1.0).is_still
    planned = follow(tracker_of(), [], per_sample_mb=1.0, planned_bytes=10**9)
    assert (planned.is_still, planned.summary()) == (
        True,
        "96.0 MB in 1 part, none grows beyond its plan",
    )
