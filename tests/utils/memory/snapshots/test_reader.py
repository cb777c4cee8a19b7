"""The reader builds plain data, runs nothing, and gives up on files made to exhaust it."""

import io
import os
import pickle
import sys
from pathlib import Path

import pytest

from reverie.memory.snapshots import load, reader
from reverie.memory.snapshots.reader import PlainUnpickler, check_opcodes
from reverie.utils.errors import UserError

from . import writer

HEAD = b"\x80\x04"


class Attack:
    """Pickles as a call of os.system."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def attacks(marker: Path) -> dict[str, bytes]:
    """A pickle for each way in which one can run something, import something, or refer out of itself."""
    command = f"touch {marker}".encode()
    text = b"\x8c" + bytes([len(command)]) + command  # SHORT_BINUNICODE
    system = b"\x8c\x02os\x8c\x06system\x93"  # STACK_GLOBAL
    return {
        "GLOBAL": b"cos\nsystem\n(S'" + command + b"'\ntR.",
        "REDUCE": HEAD + system + text + b"\x85R.",
        "STACK_GLOBAL": HEAD + system + b".",
        "INST": b"(S'" + command + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'" + command + b"'\no.",
        "NEWOBJ": HEAD + system + text + b"\x85\x81.",
        "NEWOBJ_EX": HEAD + system + text + b"\x85}\x92.",
        "BUILD": HEAD + b"}}" + text + b"K\x01sb.",
        "EXT1": HEAD + b"\x82\x01.",
        "EXT2": HEAD + b"\x83\x01\x00.",
        "EXT4": HEAD + b"\x84\x01\x00\x00\x00.",
        "PERSID": b"Pos.system\n.",
        "BINPERSID": HEAD + text + b"Q.",
        "NEXT_BUFFER": b"\x80\x05\x97.",
        "protocol 0": pickle.dumps(Attack(marker), protocol=0),
        "protocol 1": pickle.dumps(Attack(marker), protocol=1),
        "protocol 5": pickle.dumps(Attack(marker), protocol=5),
        "deep inside": pickle.dumps(
            writer.snapshot([writer.segment([{**writer.block(512), "x": Attack(marker)}])])
        ),
    }


WAYS = list(attacks(Path("marker")))


def saved(folder: Path, data: bytes) -> Path:
    path = folder / "snapshot_step_1.pickle"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("way", WAYS)
def test_a_malicious_pickle_is_refused_and_nothing_of_it_runs(way: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = saved(tmp_path, attacks(marker)[way])
    with pytest.raises(UserError, match=r"is refused: at byte .* uses the opcode|is not a snapshot"):
        load(path)
    assert not marker.exists()


@pytest.mark.parametrize("way", WAYS)
def test_the_second_guard_alone_runs_nothing_either(way: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    try:
        PlainUnpickler(io.BytesIO(attacks(marker)[way])).load()
    except Exception as error:
        assert isinstance(error, (pickle.UnpicklingError, ValueError, AttributeError, TypeError))
    else:
        assert way == "BUILD"  # fills the dict of an object that the file made: there is no other object
    assert not marker.exists()


def test_the_attacks_are_real(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for way in ("GLOBAL", "REDUCE", "INST", "OBJ", "protocol 5"):
        pickle.loads(attacks(marker)[way])
        assert marker.exists(), way
        marker.unlink()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_is_read_as_pickle_reads_it(protocol: int, tmp_path: Path) -> None:
    history = [
        writer.event("alloc", frames=writer.OBSERVE),
        writer.event("oom"),
        writer.event("free_completed"),
    ]
    data = writer.snapshot(writer.incident(3_000, scale=0.01)["segments"], history)
    assert load(writer.write(tmp_path, 1, data, protocol)) == data


NUMBERS = [0, 255, 256, 65_536, -1, 2**31, 2**63, 2**64 - 1, 1.5]
TUPLES = [(1,), (1, 2), (1, 2, 3), [1, 2, (3, 4)], [(1, 2), (3, 4, 5)]]


@pytest.mark.parametrize("value", [*NUMBERS, *TUPLES, True, None, "", "é" * 300, {"a": [[[]]]}], ids=str)
def test_every_kind_of_plain_value_is_read(value: object, tmp_path: Path) -> None:
    assert load(saved(tmp_path, pickle.dumps([value, value]))) == [value, value]


def test_every_cut_of_a_snapshot_is_one_error(tmp_path: Path) -> None:
    whole = writer.write(tmp_path, 1, writer.incident(1_000, scale=0.001)).read_bytes()
    for size in range(2, len(whole), 7):
        with pytest.raises(UserError, match=f"is cut off after {size:,} bytes"):
            check_opcodes(whole[:size], Path("cut.pickle"))
    with pytest.raises(UserError, match="is empty"):
        load(saved(tmp_path, b""))


def test_changed_bytes_give_an_error_or_plain_data(tmp_path: Path) -> None:
    whole = writer.write(tmp_path, 1, writer.snapshot([writer.segment([writer.block(512)])])).read_bytes()
    plain = (dict, list, tuple, str, int, float, bool, type(None))
    num_refused = 0
    for position in range(2, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= (0x01, 0x80, 0xFF)[position % 3]
        try:
            assert isinstance(load(saved(tmp_path, bytes(damaged))), plain)
        except UserError:
            num_refused += 1
    assert num_refused > len(whole) // 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"]\x85.", "opcode TUPLE1"),
        (b"K\x01K\x02\x86K\x03\x86.", "opcode TUPLE2"),  # a tuple in a tuple
        (b"(K\x01K\x02t.", "opcode TUPLE"),
        (b"N2.", "opcode DUP"),
        (b"]r\xff\xff\xff\x7f.", "memo slot 2,147,483,647"),
        (b"\x8a\x0a" + 10 * b"\x01" + b".", "whole number of over 9 bytes"),
        (b"\x8b\xff\xff\xff\x7f.", "opcode LONG4"),
        (b"\x96\xff\xff\xff\xff\xff\x00\x00\x00.", "opcode BYTEARRAY8"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "is cut off"),  # a string of 2**63 bytes
        (b"}]K\x01s.", "is damaged: TypeError"),  # a list as a key
        (b"u.", "is damaged: UnpicklingError"),
        (b"h\x09.", "is damaged"),
    ],
    ids=str,
)
def test_what_could_exhaust_memory_time_or_stack_is_refused(
    body: bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        load(saved(tmp_path, HEAD + body))


def test_lists_may_nest_deeper_than_the_stack(tmp_path: Path) -> None:
    depth = 100 * sys.getrecursionlimit()
    data = load(saved(tmp_path, HEAD + b"]" * depth + b"a" * (depth - 1) + b"."))
    for _ in range(depth - 1):
        assert isinstance(data, list)
        (data,) = data
    assert data == []


@pytest.mark.parametrize("part", [b"]", b"}", b"\x8c\x00"], ids=["lists", "dicts", "strings"])
def test_more_parts_than_the_limit_are_refused(
    part: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_PARTS", 1_000)
    assert load(saved(tmp_path, HEAD + part * 1_000 + b".")) is not None
    with pytest.raises(UserError, match="over 1,000 lists, dicts and strings"):
        load(saved(tmp_path, HEAD + part * 1_001 + b"."))


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = saved(tmp_path, HEAD + b"N" * 100 + b".")
    assert load(path, max_bytes=103) is None
    with pytest.raises(UserError, match=r"has over 102 bytes.*max_entries=100_000"):
        load(path, max_bytes=102)


def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "snapshot_step_1.pickle"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="cannot be read: it is a pipe, not a regular file"):
        load(pipe)
