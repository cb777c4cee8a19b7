"""Every version's snapshot becomes the same thing."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from reverie.memory.snapshots import Block, Frame, Snapshot, parse, read_snapshot, schema, summarize
from reverie.memory.snapshots.schema import BlockState
from reverie.utils.errors import UserError

from . import writer

HERE = Path("snapshot_step_1.pickle")
FRAMES = writer.stack("a.py:1:f", "b.py:2:g")
STACK = (Frame("a.py", 1, "f"), Frame("b.py", 2, "g"))


def two_blocks(**changes: Any) -> dict[str, Any]:
    """A snapshot of an active and an inactive block; `changes` are of its segment, None leaves a key out."""
    raw = writer.segment([writer.block(1_024, FRAMES), writer.block(512, state="inactive")], **changes)
    return writer.snapshot([{key: value for key, value in raw.items() if value is not None}])


def test_a_snapshot_of_torch_2_13_is_taken_over() -> None:
    (segment,) = parse(two_blocks(), HERE).segments
    assert (segment.total_bytes, segment.is_small, segment.is_private, segment.is_expandable) == (
        1_536,
        True,
        False,
        False,
    )
    assert segment.blocks == (
        Block(1_024, 1_024 - writer.ROUNDED_OFF, BlockState.allocated, STACK),
        Block(512, 512 - writer.ROUNDED_OFF, BlockState.inactive, ()),
    )


def test_the_bare_list_and_the_block_histories_of_torch_2_0_are_read() -> None:
    old = two_blocks()["segments"]
    active, inactive = old[0]["blocks"]
    for block in (active, inactive):
        del block["frames"], block["requested_size"]
    active["history"] = [
        {"addr": 0, "real_size": 924, "frames": FRAMES},
        {"addr": 0, "real_size": 7, "frames": []},
    ]
    assert parse(old, HERE) == Snapshot(
        (
            schema.Segment(
                1_536,
                is_small=True,
                is_private=False,
                is_expandable=False,
                blocks=(
                    Block(1_024, 924, BlockState.allocated, STACK),
                    Block(512, 512, BlockState.inactive, ()),
                ),
            ),
        ),
        num_events=0,
    )
    del active["history"][0]["frames"]
    assert parse(old, HERE).segments[0].blocks[0].stack == ()


@pytest.mark.parametrize("name", ["active_pending_free", "active_awaiting_free"])
def test_the_documented_and_the_written_name_of_pending_frees_are_one(name: str) -> None:
    snapshot = parse(writer.snapshot([writer.segment([writer.block(512, state=name)])]), HERE)
    assert snapshot.segments[0].blocks[0].state is BlockState.pending_free


def test_a_snapshot_without_annotations_traces_and_settings_is_read() -> None:
    raw = two_blocks()
    for key in ("external_annotations", "device_traces", "allocator_settings"):
        del raw[key]
    assert parse(raw, HERE) == parse(two_blocks(), HERE)


def test_newer_keys_and_actions_are_passed_over() -> None:
    raw = two_blocks(internal_metadata="", colour=["x"])
    raw |= {"host_segments": [{}], "host_traces": [[writer.event("annotate")]], "new": {"a": 1}}
    raw["segments"][0]["blocks"][0]["stream_uses"] = [7]
    raw["device_traces"] = [[writer.event("annotate", internal_metadata="x"), writer.event("user_defined")]]
    snapshot = parse(raw, HERE)
    assert snapshot.segments == parse(two_blocks(), HERE).segments
    assert snapshot.num_events == 2


def test_a_history_with_a_dangling_free_is_counted_and_harmless(tmp_path: Path) -> None:
    raw = writer.snapshot(two_blocks()["segments"], [writer.event("free_completed"), writer.event("oom")])
    assert read_snapshot(writer.write(tmp_path, 1, raw)).num_events == 2


@pytest.mark.parametrize(
    ("key", "flag"), [("segment_pool_id", "is_private"), ("is_expandable", "is_expandable")]
)
def test_pools_of_their_own_and_expandable_segments_are_marked(key: str, flag: str) -> None:
    marked = {"segment_pool_id": (0, 3), "is_expandable": True}[key]
    assert getattr(parse(two_blocks(**{key: marked}), HERE).segments[0], flag) is True
    assert getattr(parse(two_blocks(**{key: None}), HERE).segments[0], flag) is False


@pytest.mark.parametrize(("size", "is_small"), [(2 * 2**20, True), (20 * 2**20, False)])
def test_a_segment_that_does_not_name_its_pool_is_judged_by_its_size(size: int, is_small: bool) -> None:
    raw = writer.snapshot([writer.segment([writer.block(size)], segment_type=None)])
    assert parse(raw, HERE).segments[0].is_small is is_small


def test_equal_stacks_are_one_object_whether_the_file_shares_them_or_not(tmp_path: Path) -> None:
    blocks = [
        writer.block(512, FRAMES),
        writer.block(512, FRAMES),
        writer.block(512, [dict(f) for f in FRAMES]),
    ]
    read = (
        read_snapshot(writer.write(tmp_path, 1, writer.snapshot([writer.segment(blocks)]))).segments[0].blocks
    )
    assert len({id(block.stack) for block in read}) == 1
    assert read[0].stack == STACK


def test_texts_of_a_file_cannot_steer_a_terminal_nor_fill_it() -> None:
    evil = [{"filename": "a\x1b[31m\n\u202e.py", "line": 1, "name": "f\ud800" + "x" * 10_000}, {"line": None}]
    raw = writer.snapshot([writer.segment([writer.block(512, evil)])])
    first, second = parse(raw, HERE).segments[0].blocks[0].stack
    assert first.filename == "a?[31m??.py"
    assert first.name == "f?" + "x" * 398
    assert second == Frame("?", 0, "?")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"weights": []}, "has no list of segments"),
        (5, "has no list of segments"),
        ([1], r"segments\[0\] is not a dict"),
        ([{"blocks": []}], r"segments\[0\].total_size is missing"),
        ([{"total_size": -1, "blocks": []}], r"segments\[0\].total_size is not a number of bytes"),
        ([{"total_size": True, "blocks": []}], r"segments\[0\].total_size is not a number of bytes"),
        ([{"total_size": 1, "blocks": {}}], r"segments\[0\].blocks is not a list"),
        ([{"total_size": 1, "blocks": [None]}], r"segments\[0\].blocks\[0\] is not a dict"),
        ([{"total_size": 1, "blocks": [{"size": 2**70}]}], r"blocks\[0\].size is not a number of bytes"),
        ([{"total_size": 1, "blocks": [{"size": 1}]}], r"blocks\[0\].state is none of active_allocated"),
        ([writer.segment([{**writer.block(512), "state": ["x"]}])], r"blocks\[0\].state is none of"),
        ([writer.segment([writer.block(512) | {"frames": 7}])], r"frames in segments\[0\] is not a list"),
        ([writer.segment([writer.block(512) | {"frames": [7]}])], r"a frame in segments\[0\] is not a dict"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pickle_of_something_else_is_told_apart(data: object, message: str) -> None:
    with pytest.raises(UserError, match=f"is a pickle, but no memory snapshot: .*{message}"):
        parse(data, HERE)


def test_few_bytes_cannot_stand_for_endless_blocks(tmp_path: Path) -> None:
    one = writer.segment([writer.block(512)] * 5_000)
    path = writer.write(tmp_path, 1, writer.snapshot([one] * 5_000))  # 25,000,000 blocks
    assert path.stat().st_size < 50_000
    with pytest.raises(UserError, match="holds over 5,000,000 blocks"):
        read_snapshot(path)


def test_parts_that_contain_themselves_end() -> None:
    blocks: list[Any] = []
    blocks.append(blocks)
    with pytest.raises(UserError, match="is not a dict"):
        parse([{"total_size": 1, "blocks": blocks}], HERE)
    frames: list[Any] = writer.stack("a.py:1:f")
    frames[0]["name"] = frames
    snapshot = parse(writer.snapshot([writer.segment([writer.block(512, frames)])]), HERE)
    assert snapshot.segments[0].blocks[0].stack == (Frame("a.py", 1, "?"),)


def test_the_cycle_collector_is_on_again_after_a_file_and_after_an_error(tmp_path: Path) -> None:
    import gc

    assert gc.isenabled()
    read_snapshot(writer.write(tmp_path, 1, two_blocks()))
    assert gc.isenabled()
    with pytest.raises(UserError):
        read_snapshot(writer.write(tmp_path, 1, pickle.dumps(3)))
    assert gc.isenabled()


def test_a_snapshot_of_nothing_is_read(tmp_path: Path) -> None:
    summary = summarize(read_snapshot(writer.write(tmp_path, 1, writer.snapshot([]))), 1)
    assert (summary.active_bytes, summary.active_blocks, summary.mean_block_bytes, summary.sites) == (
        0,
        0,
        0,
        {},
    )
