"""The reader builds plain data, runs no code, and rejects files that would exhaust memory."""

import gc
import io
import os
import pickle
import resource
import sys
from pathlib import Path

import pytest
from heapwatch import UsageError
from heapwatch.snapshots import reader
from heapwatch.snapshots.reader import PlainUnpickler, load

from . import writer

HEAD = b"\x80\x04"


class Attack:
    """Pickles as a call of os.system."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def attacks(marker: Path) -> dict[str, bytes]:
    """Return a pickle for each way to run code, import a name, or refer to external objects."""
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
        "BUILD": HEAD + b"]}" + text + b"K\x01sb.",
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


def saved(folder: Path, data: bytes) -> Path:
    path = folder / "snapshot_step_1.pickle"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("way", list(attacks(Path("marker"))))
def test_a_malicious_pickle_is_refused_and_nothing_of_it_runs(way: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = saved(tmp_path, attacks(marker)[way])
    with pytest.raises(UsageError, match="is damaged or not a snapshot: "):
        load(path)
    assert not marker.exists()


def test_the_attacks_are_real(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for way in ("GLOBAL", "REDUCE", "INST", "OBJ", "protocol 5"):
        pickle.loads(attacks(marker)[way])
        assert marker.exists(), way
        marker.unlink()


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_snapshot_is_read_as_pickle_reads_it(protocol: int, tmp_path: Path) -> None:
    history = [
        writer.event("alloc", frames=writer.OBSERVE),
        writer.event("oom"),
        writer.event("free_completed"),
    ]
    data = writer.snapshot(writer.incident(3_000, scale=0.01)["segments"], history)
    assert load(writer.write(tmp_path, 1, data, protocol)) == data


def test_every_cut_of_a_snapshot_is_an_error(tmp_path: Path) -> None:
    whole = writer.write(tmp_path, 1, writer.incident(1_000, scale=0.001)).read_bytes()
    for size in range(0, len(whole), 7):
        with pytest.raises(Exception, match=r"truncated|Ran out of input|exhausted"):
            PlainUnpickler(io.BytesIO(whole[:size])).load()
    with pytest.raises(UsageError, match=r"is damaged or not a snapshot: .*Remove it, or save it again\.$"):
        load(saved(tmp_path, whole[:-100]))


def test_changed_bytes_give_an_error_or_plain_data(tmp_path: Path) -> None:
    whole = writer.write(tmp_path, 1, writer.snapshot([writer.segment([writer.block(512)])])).read_bytes()
    plain = (dict, list, tuple, str, int, float, bool, bytes, bytearray, set, frozenset, type(None))
    num_refused = 0
    for position in range(2, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= (0x01, 0x80, 0xFF)[position % 3]
        try:
            assert isinstance(load(saved(tmp_path, bytes(damaged))), plain)
        except UsageError:
            num_refused += 1
    assert num_refused > len(whole) // 4


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # A memo slot.
        (b"]r\xff\xff\xff\xff.", "needs more than 4,294,967,296 bytes of memory to read"),
        # A bytearray of 256 GiB.
        (b"\x96\x00\x00\x00\x00\x40\x00\x00\x00.", "needs more than"),
        # A string of 2**63 bytes.
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "is damaged or not a snapshot"),
        (b"}]K\x01s.", "is damaged or not a snapshot: unhashable type"),
        (b"u.", "is damaged or not a snapshot"),
    ],
    ids=["memo slot", "bytearray", "string", "list as a key", "no mark"],
)
def test_few_bytes_cannot_ask_for_much_memory(body: bytes, message: str, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(UsageError, match=message):
        load(saved(tmp_path, HEAD + body))
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_file_of_too_many_parts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_MEMORY_BYTES", 64 * 2**20)
    with pytest.raises(UsageError, match="needs more than 67,108,864 bytes of memory"):
        load(saved(tmp_path, HEAD + b"(" + b"}" * 4 * 2**20 + b"l."))


def test_lists_may_nest_deeper_than_the_stack(tmp_path: Path) -> None:
    depth = 100 * sys.getrecursionlimit()
    data = load(saved(tmp_path, HEAD + b"]" * depth + b"a" * (depth - 1) + b"."))
    for _ in range(depth - 1):
        assert isinstance(data, list)
        (data,) = data
    assert data == []


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = saved(tmp_path, b"")
    os.truncate(path, reader.MAX_FILE_BYTES + 1)
    with pytest.raises(UsageError, match=r"limit of 134,217,728\. Record the snapshot without a history"):
        load(path)


def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "snapshot_step_1.pickle"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="cannot be read: it is a pipe, not a regular file"):
        load(pipe)


def test_the_cycle_collector_is_on_again_after_a_file_and_after_an_error(tmp_path: Path) -> None:
    assert gc.isenabled()
    load(writer.write(tmp_path, 1, writer.snapshot([])))
    assert gc.isenabled()
    with pytest.raises(UsageError):
        load(saved(tmp_path, b"no pickle"))
    assert gc.isenabled()
