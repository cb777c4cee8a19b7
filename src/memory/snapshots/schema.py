"""What a CUDA memory snapshot says, in one form for every version of PyTorch that wrote it.

Fields are found by presence, never by version; keys and actions not known here are passed over. Read are:

    torch 2.0      a bare list of segments, or a dict of them; `history` on a block in place of `frames` and
                   `requested_size`
    2.1 to 2.4     the dict of today, without `external_annotations`
    2.5 to 2.13    the dict of `torch.cuda.memory._snapshot()`, with or without frames, traces, private pools
    later          the same with more keys

PyTorch's documentation has a state `active_awaiting_free`; what its C++ writes is `active_pending_free`.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn

from ...utils.errors import UserError, printable
from .reader import load

MAX_BLOCKS = 5_000_000  # a file can hold one list of blocks and refer to it from many segments
SMALL_SEGMENT_BYTES = 2 * 2**20  # kSmallBuffer of CUDACachingAllocator.cpp
DEFAULT_POOL = (0, 0)

_MAX_FRAMES = 512
_MAX_TEXT = 400
_MAX_NUMBER = 2**64


class BlockState(Enum):
    """Whether something lives in a block."""

    allocated = "active_allocated"
    pending_free = "active_pending_free"
    """Freed, but a stream may still use it: memory is held, no tensor holds it."""

    inactive = "inactive"
    """Cached by the allocator."""


_STATES = {state.value: state for state in BlockState} | {"active_awaiting_free": BlockState.pending_free}


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack; its texts are printable and short, whatever the file held."""

    filename: str
    line: int
    name: str


Stack = tuple[Frame, ...]
"""Where a block was allocated, innermost first; empty where no stack was recorded."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a segment."""

    size_bytes: int
    requested_bytes: int
    """What was asked for, before rounding; of an inactive block, its last request, which says nothing."""

    state: BlockState
    stack: Stack
    """The same object for every equal stack of a snapshot."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory taken from the driver at once."""

    total_bytes: int
    is_small: bool
    """Whether it belongs to the pool of requests up to 1 MiB."""

    is_private: bool
    """Whether it belongs to a CUDA graph or a MemPool."""

    is_expandable: bool
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that PyTorch held on every CUDA device at one moment."""

    segments: tuple[Segment, ...]
    num_events: int
    """Entries of the recorded history; it is a ring, so frees can lack their allocation."""


def read_snapshot(path: Path) -> Snapshot:
    """Read and check a snapshot file.

    Cost: 0.5 s and 50 MB for each 100,000 blocks.

    Raises:
        UserError: If it is not a snapshot, for the reasons of `load` or for what it holds.
    """
    with _without_cycle_collector():
        return parse(load(path), path)


def parse(data: object, path: Path) -> Snapshot:
    """Return the snapshot that plain data describes.

    Args:
        data: What `load` returned.
        path: Where it comes from, for messages.

    Raises:
        UserError: If something that every version writes is missing or of another kind.
    """
    raw_segments = data.get("segments") if isinstance(data, dict) else data
    if not isinstance(raw_segments, list):
        raise UserError(f"{path} is a pickle, but no memory snapshot: it has no list of segments.")
    parser = _Parser(path)
    segments = tuple(parser.segment(raw, f"segments[{i}]") for i, raw in enumerate(raw_segments))
    traces = data.get("device_traces") if isinstance(data, dict) else None
    events = [len(trace) for trace in traces if isinstance(trace, list)] if isinstance(traces, list) else []
    return Snapshot(segments, sum(events))


@contextmanager
def _without_cycle_collector() -> Iterator[None]:
    """Keep the collector from running: among objects that all stay, it would double the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Parser:
    """Reads the parts of one file; a part that the pickle shares is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_blocks = 0
        # By the id of what was read, which the caller keeps alive.
        self._blocks: dict[int, Block] = {}
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[int, Stack] = {}
        self._same_stack: dict[Stack, Stack] = {}

    def segment(self, raw: object, where: str) -> Segment:
        """Return the segment that `raw` describes."""
        fields = self._mapping(raw, where)
        total = self._number(fields, "total_size", where)
        blocks = fields.get("blocks")
        if not isinstance(blocks, list):
            self._refuse(f"{where}.blocks", "is not a list")
        self._num_blocks += len(blocks)
        if self._num_blocks > MAX_BLOCKS:
            raise UserError(f"{self._path} holds over {MAX_BLOCKS:,} blocks, the most that are read.")
        kind = fields.get("segment_type")
        return Segment(
            total_bytes=total,
            is_small=kind == "small" if isinstance(kind, str) else total <= SMALL_SEGMENT_BYTES,
            is_private=fields.get("segment_pool_id", DEFAULT_POOL) != DEFAULT_POOL,
            is_expandable=fields.get("is_expandable") is True,
            blocks=tuple(self._each_block(blocks, where)),
        )

    def _each_block(self, raws: list[object], where: str) -> Iterator[Block]:
        """Yield a segment's blocks."""
        known = self._blocks
        for index, raw in enumerate(raws):
            block = known.get(id(raw))
            if block is None:
                block = known[id(raw)] = self._block(raw, where, index)
            yield block

    def _block(self, raw: object, where: str, index: int) -> Block:
        """Return the block that `raw` describes."""
        fields = self._mapping(raw, where, index)
        size = self._number(fields, "size", where, index)
        state = fields.get("state")
        if not isinstance(state, str) or state not in _STATES:
            self._refuse(f"{where}.blocks[{index}].state", f"is none of {', '.join(_STATES)}")
        history = fields.get("history")
        if "frames" not in fields and isinstance(history, list) and history:  # torch 2.0
            last = self._mapping(history[0], f"{where}.blocks[{index}].history[0]")
            return Block(
                size, self._number(last, "real_size", where, index), _STATES[state], self._stack(last, where)
            )
        requested = (
            self._number(fields, "requested_size", where, index) if "requested_size" in fields else size
        )
        return Block(size, requested, _STATES[state], self._stack(fields, where))

    def _stack(self, holder: Mapping[str, object], where: str) -> Stack:
        """Return the stack in `holder`, the same object for equal stacks."""
        raw = holder.get("frames")
        if not raw:
            return ()
        stack = self._stacks.get(id(raw))
        if stack is None:
            if not isinstance(raw, list):
                self._refuse(f"frames in {where}", "is not a list")
            stack = tuple(self._frame(frame, where) for frame in raw[:_MAX_FRAMES])
            stack = self._stacks[id(raw)] = self._same_stack.setdefault(stack, stack)
        return stack

    def _frame(self, raw: object, where: str) -> Frame:
        """Return the frame that `raw` describes."""
        frame = self._frames.get(id(raw))
        if frame is None:
            fields = self._mapping(raw, f"a frame in {where}")
            line = fields.get("line")
            frame = self._frames[id(raw)] = Frame(
                _printable(fields.get("filename")),
                line if isinstance(line, int) else 0,
                _printable(fields.get("name")),
            )
        return frame

    def _mapping(self, raw: object, where: str, index: int | None = None) -> Mapping[str, object]:
        """Return `raw` if it is a dict."""
        if not isinstance(raw, dict):
            self._refuse(where if index is None else f"{where}.blocks[{index}]", "is not a dict")
        return raw

    def _number(self, fields: Mapping[str, object], key: str, where: str, index: int | None = None) -> int:
        """Return a number of bytes."""
        value = fields.get(key)
        if type(value) is not int or not 0 <= value < _MAX_NUMBER:
            owner = where if index is None else f"{where}.blocks[{index}]"
            self._refuse(f"{owner}.{key}", "is missing" if value is None else "is not a number of bytes")
        return value

    def _refuse(self, where: str, why: str) -> NoReturn:
        raise UserError(f"{self._path} is a pickle, but no memory snapshot: {where} {why}.")


def _printable(text: object) -> str:
    """Return a text that is safe to print: no control characters, no lone surrogates, of a bounded length."""
    return printable(text, _MAX_TEXT) if isinstance(text, str) else "?"
