"""Read CUDA memory snapshots from untrusted files, and summarize each in a few numbers.

A pickle is a program. Snapshots are plain data, so the unpickler rejects every name and cannot call code. A
malicious file can still waste time, or crash the analyzer with tuples nested too deeply for Python to hash.
"""

import errno
import gc
import io
import os
import pickle
import resource
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

import psutil

from ..errors import UsageError
from ..files import open_regular
from ..texts import printable

MAX_FILE_BYTES = 128 * 2**20
# A few bytes of a pickle, such as the number of a memo slot, can request many GB.
MAX_MEMORY_BYTES = 4 * 2**30
# Many segments of a file may reference the same list of blocks.
MAX_BLOCKS = 5_000_000

_DEFAULT_POOL = (0, 0)
# The first name is from the C++ code, the second from the documentation.
_PENDING_FREE = ("active_pending_free", "active_awaiting_free")
_STATES = ("active_allocated", *_PENDING_FREE, "inactive")
_MAX_FRAMES = 512
_MAX_TEXT = 400
_MAX_LINE = 2**31


class Frame(NamedTuple):
    """One line of a stack trace."""

    filename: str
    line: int
    name: str


# The location of an allocation, innermost frame first, or empty if no stack was recorded.
Stack = tuple[Frame, ...]
# Maps each stack to the number of active blocks by size in bytes.
SiteSizes = Mapping[Stack, Mapping[int, int]]


@dataclass(slots=True)
class Summary:
    """PyTorch's memory on all CUDA devices at one step. Active blocks are in use by a tensor or a stream."""

    step: int
    small_active_bytes: int = 0
    """Active bytes in the pool of requests up to 1 MiB."""
    large_active_bytes: int = 0
    pending_free_bytes: int = 0
    """Active bytes that a stream may still use after Python freed them."""
    inactive_split_bytes: int = 0
    """Free parts of segments in use that the allocator cannot return to the driver: fragmentation."""
    rounding_bytes: int = 0
    """Bytes of active blocks beyond the requested size."""
    reserved_bytes: int = 0
    """Memory obtained from the driver, active or cached."""
    private_bytes: int = 0
    """Memory reserved by CUDA graphs and MemPools."""
    active_blocks: int = 0
    sites: SiteSizes = field(default_factory=dict)

    @property
    def active_bytes(self) -> int:
        """Bytes of all active blocks."""
        return self.small_active_bytes + self.large_active_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of live tensors: `torch.cuda.memory_allocated()`."""
        return self.active_bytes - self.pending_free_bytes

    @property
    def mean_block_bytes(self) -> float:
        """Mean size of an active block, or 0 without active blocks."""
        return self.active_bytes / self.active_blocks if self.active_blocks else 0.0


class PlainUnpickler(pickle.Unpickler):
    """Builds only plain data: no classes, functions or objects from outside the file."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Reject all imports."""
        raise pickle.UnpicklingError(f"it contains {module_name}.{global_name}, but a snapshot is plain data")

    def persistent_load(self, pid: object, /) -> NoReturn:
        """Reject references to objects outside the file."""
        raise pickle.UnpicklingError("it refers to an object outside itself, but a snapshot is plain data")


def read_summary(path: Path, step: int) -> Summary:
    """Read a snapshot file and summarize it.

    Cost: 0.5 s and 50 MB per 100,000 blocks. The memory is freed afterwards.

    Raises:
        UsageError: See `load` and `summarize`.
    """
    return summarize(load(path), path, step)


def load(path: Path) -> object:
    """Return the plain data of a `torch.cuda.memory._dump_snapshot` file. Objects may contain themselves.

    Raises:
        UsageError: If the file cannot be read, exceeds a limit, is damaged, or is not plain data.
    """
    try:
        with open_regular(path, MAX_FILE_BYTES) as file:
            data = file.read(os.fstat(file.fileno()).st_size)
    except OSError as error:
        repair = " Record the snapshot without a history." if error.errno == errno.EFBIG else ""
        raise UsageError(f"{path} cannot be read: {error.strerror}.{repair}") from error
    try:
        with _bounded():
            return PlainUnpickler(io.BytesIO(data)).load()
    except MemoryError as error:
        raise UsageError(f"{path} needs more than {MAX_MEMORY_BYTES:,} bytes of memory to read.") from error
    except Exception as error:
        # A damaged pickle may raise almost any exception.
        reason = printable(str(error)).rstrip(".") or type(error).__name__
        what = f"{path} is damaged or not a snapshot: {reason}."
        raise UsageError(f"{what} Remove it, or save it again.") from error


@contextmanager
def _bounded() -> Iterator[None]:
    """Limit the additional memory that the process may map to `MAX_MEMORY_BYTES`, if the system supports it.

    The cycle collector is paused: it would double the time, and no garbage is created here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [psutil.Process().memory_info().vms + MAX_MEMORY_BYTES, soft, hard]
    was_on = gc.isenabled()
    gc.disable()
    try:
        # macOS may reject the limit.
        with suppress(OSError, ValueError):
            bound = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
            resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if was_on:
            gc.enable()


def summarize(data: object, path: Path, step: int) -> Summary:
    """Return the statistics of a snapshot that `load` read from `path`, over all its devices.

    Fields are found by name, independent of the PyTorch version, and unknown fields are ignored.

    Raises:
        UsageError: If a field that PyTorch always writes is missing or has another type.
    """
    # Stacks are identified by the ids of their frames, because a file stores each frame once and
    # comparing strings would be slow.
    stacks: _Stacks = {}
    summary, num_blocks, place = Summary(step), 0, "it"
    try:
        for index, raw in enumerate(_list(_dict(data), "segments")):
            place = f"segments[{index}]"
            segment = _dict(raw)
            num_blocks += len(_list(segment, "blocks"))
            if num_blocks > MAX_BLOCKS:
                raise UsageError(f"{path} contains more than {MAX_BLOCKS:,} blocks, the maximum.")
            _add_segment(summary, stacks, segment)
        place = "a stack"
        summary.sites = _sites(stacks)
    except _NotASnapshot as error:
        raise UsageError(f"{path} is a pickle, but not a memory snapshot: {place} {error}.") from error
    return summary


def _add_segment(summary: Summary, stacks: "_Stacks", segment: Mapping[str, object]) -> None:
    """Add a segment, one allocation from the driver, and its blocks to the summary."""
    total = _num_bytes(segment, "total_size")
    # The free pages of expandable segments can be returned.
    can_be_split = segment.get("is_expandable") is not True
    active_bytes = 0
    for raw in _list(segment, "blocks"):
        block = _dict(raw)
        size, state = _num_bytes(block, "size"), block.get("state")
        if state == "inactive":
            summary.inactive_split_bytes += size if can_be_split and size != total else 0
            continue
        if state in _PENDING_FREE:
            summary.pending_free_bytes += size
        elif state not in _STATES:
            raise _NotASnapshot(f"has a block whose state is not one of {', '.join(_STATES)}")
        frames = block.get("frames") or []
        if not isinstance(frames, list):
            raise _NotASnapshot("has a block whose frames are not a list")
        frames = frames[:_MAX_FRAMES]
        _, sizes = stacks.setdefault(tuple(map(id, frames)), (frames, Counter()))
        sizes[size] += 1
        summary.active_blocks += 1
        summary.rounding_bytes += size - _num_bytes(block, "requested_size")
        active_bytes += size
    if segment.get("segment_type") == "small":
        summary.small_active_bytes += active_bytes
    else:
        summary.large_active_bytes += active_bytes
    summary.reserved_bytes += total
    if segment.get("segment_pool_id", _DEFAULT_POOL) != _DEFAULT_POOL:
        summary.private_bytes += total


# Maps the ids of frames to the frames and the number of blocks by size.
_Stacks = dict[tuple[int, ...], tuple[list[object], Counter[int]]]


def _sites(stacks: _Stacks) -> SiteSizes:
    """Return the blocks by size of each distinct stack, whether or not the file shares frames."""
    frames: dict[int, Frame] = {}
    sites: dict[Stack, Counter[int]] = {}
    for raw, sizes in stacks.values():
        frames |= {id(each): _frame(each) for each in raw if id(each) not in frames}
        sites.setdefault(tuple(frames[id(each)] for each in raw), Counter()).update(sizes)
    return sites


def _frame(raw: object) -> Frame:
    """Return a frame of the file with short strings without control characters."""
    fields = _dict(raw)
    texts = [fields.get(key) for key in ("filename", "name")]
    filename, name = (printable(each, _MAX_TEXT) if isinstance(each, str) else "?" for each in texts)
    line = fields.get("line")
    return Frame(filename, line if isinstance(line, int) and 0 <= line < _MAX_LINE else 0, name)


class _NotASnapshot(Exception):
    """Content that PyTorch never writes. The message follows the name of the part."""


def _dict(raw: object) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise _NotASnapshot("has another type where a dict is expected")
    return raw


def _list(fields: Mapping[str, object], key: str) -> list[object]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise _NotASnapshot(f"has no list of {key}")
    return value


def _num_bytes(fields: Mapping[str, object], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value < 2**64:
        raise _NotASnapshot(f"has a {key} that is missing or not a number of bytes")
    return value
