"""A snapshot is reduced to a few numbers and call-sites, independent of the torch version."""

from pathlib import Path
from typing import Any

import pytest
from heapwatch import UsageError
from heapwatch.snapshots.reader import MAX_BLOCKS, Frame, Summary, read_summary, summarize

from . import writer

HERE = Path("snapshot_step_1.pickle")
FRAMES = writer.stack("a.py:1:f", "b.py:2:g")
STACK = (Frame("a.py", 1, "f"), Frame("b.py", 2, "g"))


def summary_of(*segments: dict[str, Any], step: int = 1) -> Summary:
    return summarize(writer.snapshot(list(segments)), HERE, step)


def test_a_snapshot_is_summed_by_pool_and_by_state() -> None:
    small = writer.segment(
        [
            writer.block(1_024),
            writer.block(512, state="active_pending_free"),
            writer.block(4_096, state="inactive"),
            writer.block(2_048),
        ],
        segment_pool_id=(0, 2),
    )
    large = writer.segment([writer.block(20_480)], small=False)
    cached = writer.segment([writer.block(8_192, state="inactive")], small=False)
    summary = summary_of(small, large, cached, step=7)
    assert summary.step == 7
    assert (summary.small_active_bytes, summary.large_active_bytes) == (3_584, 20_480)
    assert (summary.active_bytes, summary.pending_free_bytes, summary.allocated_bytes) == (
        24_064,
        512,
        23_552,
    )
    assert summary.active_blocks == 4
    assert summary.mean_block_bytes == 6_016
    # The whole cached segment can be returned, so it does not count.
    assert summary.inactive_split_bytes == 4_096
    # Only active blocks count.
    assert summary.rounding_bytes == 4 * writer.ROUNDED_OFF
    assert (summary.reserved_bytes, summary.private_bytes) == (36_352, 7_680)


def test_the_numbers_agree_with_those_that_torch_writes_next_to_them() -> None:
    segments = writer.incident(9_000, scale=0.02)["segments"]
    summary = summary_of(*segments)
    assert summary.allocated_bytes == sum(segment["allocated_size"] for segment in segments)
    assert summary.active_bytes == sum(segment["active_size"] for segment in segments)
    requested = sum(segment["requested_size"] for segment in segments)
    assert summary.active_bytes - summary.rounding_bytes == requested


def test_free_parts_of_an_expandable_segment_are_not_split_off() -> None:
    blocks = [writer.block(1_024), writer.block(4_096, state="inactive")]
    assert summary_of(writer.segment(blocks, is_expandable=True)).inactive_split_bytes == 0
    assert summary_of(writer.segment(blocks)).inactive_split_bytes == 4_096


def test_a_block_that_the_file_refers_to_twice_counts_twice() -> None:
    one = writer.block(512, FRAMES)
    summary = summary_of(writer.segment([one, one]), writer.segment([one]))
    assert (summary.active_bytes, summary.active_blocks) == (1_536, 3)
    assert summary.sites == {STACK: {512: 3}}


def test_equal_stacks_are_one_site_whether_the_file_shares_them_or_not(tmp_path: Path) -> None:
    frames = [FRAMES, FRAMES, list(FRAMES), [dict(frame) for frame in FRAMES]]
    raw = writer.snapshot([writer.segment([writer.block(512, each) for each in frames])])
    assert read_summary(writer.write(tmp_path, 1, raw), 1).sites == {STACK: {512: 4}}


@pytest.mark.parametrize("name", ["active_pending_free", "active_awaiting_free"])
def test_the_documented_and_the_written_name_of_pending_frees_are_one(name: str) -> None:
    assert summary_of(writer.segment([writer.block(512, state=name)])).pending_free_bytes == 512


def test_a_snapshot_needs_no_annotations_traces_and_settings_and_may_have_newer_keys(tmp_path: Path) -> None:
    segments = [writer.segment([writer.block(1_024, FRAMES), writer.block(512, state="inactive")])]
    expected = summary_of(*segments)
    assert summarize({"segments": segments}, HERE, 1) == expected
    raw = writer.snapshot(segments, [writer.event("free_completed"), writer.event("user_defined")])
    raw |= {"host_segments": [{}], "host_traces": [[writer.event("annotate")]], "new": {"a": 1}}
    raw["segments"][0]["blocks"][0]["stream_uses"] = [7]
    assert read_summary(writer.write(tmp_path, 1, raw), 1) == expected


def test_texts_of_a_file_cannot_steer_a_terminal_nor_fill_it() -> None:
    evil = [
        {"filename": "a\x1b[31m\n\u202e.py", "line": 1, "name": "f\ud800" + "x" * 10_000},
        {"line": 10**9_999},
    ]
    ((first, second),) = summary_of(writer.segment([writer.block(512, evil)])).sites
    assert first.filename == "a?[31m??.py"
    assert first.name == "f?" + "x" * 398
    assert second == Frame("?", 0, "?")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"weights": []}, "it has no list of segments"),
        (5, "it has another type where a dict is expected"),
        ({"segments": [1]}, r"segments\[0\] has another type where a dict is expected"),
        ({"segments": [{"blocks": []}]}, r"segments\[0\] has a total_size that is missing"),
        (
            {"segments": [{"total_size": -1, "blocks": []}]},
            "total_size that is missing or not a number of bytes",
        ),
        ({"segments": [{"total_size": True, "blocks": []}]}, "or not a number of bytes"),
        ({"segments": [{"total_size": 1, "blocks": {}}]}, r"segments\[0\] has no list of blocks"),
        ({"segments": [{"total_size": 1, "blocks": [None]}]}, "where a dict is expected"),
        (
            {"segments": [{"total_size": 1, "blocks": [{"size": 2**70}]}]},
            "a size that is missing or not a number",
        ),
        ({"segments": [{"total_size": 1, "blocks": [{"size": 1}]}]}, "state is not one of active_allocated"),
        (writer.snapshot([writer.segment([writer.block(512, state="?")])]), "state is not one of"),
        (writer.snapshot([writer.segment([writer.block(512) | {"frames": 7}])]), "frames are not a list"),
        (
            writer.snapshot([writer.segment([writer.block(512) | {"frames": [7]}])]),
            "where a dict is expected",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pickle_without_a_snapshot_is_refused(data: object, message: str) -> None:
    with pytest.raises(UsageError, match=f"is a pickle, but not a memory snapshot: .*{message}"):
        summarize(data, HERE, 1)


def test_few_bytes_cannot_stand_for_endless_blocks() -> None:
    few, many = ([writer.block(512)] * count for count in (10, MAX_BLOCKS))
    with pytest.raises(UsageError, match="contains more than 5,000,000 blocks"):
        summary_of(*(writer.segment([]) | {"blocks": blocks} for blocks in (few, many)))


def test_parts_that_contain_themselves_end() -> None:
    blocks: list[Any] = []
    blocks.append(blocks)
    with pytest.raises(UsageError, match="where a dict is expected"):
        summary_of({"total_size": 1, "blocks": blocks})
    frames: list[Any] = writer.stack("a.py:1:f")
    frames[0]["name"] = frames
    summary = summary_of(writer.segment([writer.block(512, frames)]))
    assert list(summary.sites) == [(Frame("a.py", 1, "?"),)]


def test_a_snapshot_of_nothing_is_read() -> None:
    assert summary_of() == Summary(1)
    assert Summary(1).mean_block_bytes == 0
