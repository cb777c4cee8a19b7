"""Read CUDA memory snapshots without trust, and sum up each one in a few numbers.

A pickle is a program; an unpickler that refuses every name has nothing to call, and snapshots need none.
A file made for it can still waste time, or crash the analyser by tuples nested deeper than Python can hash.
"""

import errno
import gc
import io
import os
import pickle
import resource
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

import psutil

from ..errors import UsageError
from ..texts import printable

MAX_FILE_BYTES = 128 * 2**20
MAX_MEMORY_BYTES = 4 * 2**30  # a few bytes can ask for many GB, as the number of a memo slot does
MAX_BLOCKS = 5_000_000  # a file can hold one list of blocks and refer to it from many segments

_DEFAULT_POOL = (0, 0)
_PENDING_FREE = ("active_pending_free", "active_awaiting_free")  # as C++ writes it; as the documentation says
_STATES = ("active_allocated", *_PENDING_FREE, "inactive")
_MAX_FRAMES = 512
_MAX_TEXT = 400
_MAX_LINE = 2**31


class Frame(NamedTuple):
    """One line of a stack."""

    filename: str
    line: int
    name: str


Stack = tuple[Frame, ...]  # where memory was allocated, innermost first; empty where no stack was recorded
SiteSizes = Mapping[Stack, Mapping[int, int]]  # of each stack, how many active blocks of each size in bytes


@dataclass(slots=True)
class Summary:
    """What PyTorch holds on all CUDA devices at one step; a tensor or a stream uses active blocks."""

    step: int
    small_active_bytes: int = 0
    """Active bytes in the pool of requests up to 1 MiB."""
    large_active_bytes: int = 0
    pending_free_bytes: int = 0
    """Active, but freed by Python: some stream has not passed the free yet."""
    inactive_split_bytes: int = 0
    """Free parts of segments in use, which the allocator cannot give back to the driver: fragmentation."""
    rounding_bytes: int = 0
    """Bytes of active blocks beyond the request."""
    reserved_bytes: int = 0
    """Taken from the driver, active or cached."""
    private_bytes: int = 0
    """Reserved by CUDA graphs and MemPools."""
    active_blocks: int = 0
    sites: SiteSizes = field(default_factory=dict)

    @property
    def active_bytes(self) -> int:
        """Bytes of all active blocks."""
        return self.small_active_bytes + self.large_active_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes that tensors hold: `torch.cuda.memory_allocated()`."""
        return self.active_bytes - self.pending_free_bytes

    @property
    def mean_block_bytes(self) -> float:
        """Mean size of an active block; 0 if there is none."""
        return self.active_bytes / self.active_blocks if self.active_blocks else 0.0


class PlainUnpickler(pickle.Unpickler):
    """Builds plain data only: it knows no class, no function and no object outside the file."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse to import anything."""
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, and a snapshot is plain data")

    def persistent_load(self, pid: object, /) -> NoReturn:
        """Refuse a reference to something outside the file."""
        raise pickle.UnpicklingError("it refers to an object outside itself, and a snapshot is plain data")


def read_summary(path: Path, step: int) -> Summary:
    """Read a snapshot file and sum it up.

    Cost: 0.5 s and 50 MB for each 100,000 blocks, of which the summary keeps none.

    Raises:
        UsageError: As `load` and `summarize` do.
    """
    return summarize(load(path), path, step)


def load(path: Path) -> object:
    """Return the plain data of a file of `torch.cuda.memory._dump_snapshot`; parts may contain themselves.

    Raises:
        UsageError: If the file cannot be read, is over a limit, is damaged, or is anything but plain data.
    """
    try:
        data = _read_regular(path)
    except OSError as error:
        repair = " Record it without a history." if error.errno == errno.EFBIG else ""
        raise UsageError(f"{path} cannot be read: {error.strerror}.{repair}") from error
    try:
        with _bounded():
            return PlainUnpickler(io.BytesIO(data)).load()
    except MemoryError as error:
        raise UsageError(f"{path} takes more than {MAX_MEMORY_BYTES:,} bytes of memory to read.") from error
    except Exception as error:  # a damaged pickle may raise nearly any
        reason = printable(str(error)).rstrip(".") or type(error).__name__
        what = f"{path} is damaged or no snapshot: {reason}."
        raise UsageError(f"{what} Remove it, or save it again.") from error


def _read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file of at most `MAX_FILE_BYTES`, without following links.

    The `strerror` of an `OSError` says what is wrong with it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "it is a link, not a regular file"
        raise
    with os.fdopen(handle, "rb", closefd=True) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > MAX_FILE_BYTES:
            reason = f"it has {status.st_size:,} bytes, and at most {MAX_FILE_BYTES:,} are read"
            raise OSError(errno.EFBIG, reason, str(path))
        return file.read(status.st_size)


@contextmanager
def _bounded() -> Iterator[None]:
    """Let the process map at most `MAX_MEMORY_BYTES` more, where the system can bound it.

    The cycle collector pauses: among objects that all stay, it would double the time.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [psutil.Process().memory_info().vms + MAX_MEMORY_BYTES, soft, hard]
    was_on = gc.isenabled()
    gc.disable()
    try:
        with suppress(OSError, ValueError):  # macOS may refuse
            bound = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
            resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if was_on:
            gc.enable()


def summarize(data: object, path: Path, step: int) -> Summary:
    """Return the numbers of a snapshot that `load` read from `path`, over all its devices.

    Fields are found by name, whatever version of PyTorch wrote them, and unknown ones are skipped.

    Raises:
        UsageError: If something that PyTorch always writes is missing or of another type.
    """
    # Stacks are told apart by their frames' identity, which a file stores once: texts would take longer.
    stacks: _Stacks = {}
    summary, num_blocks, place = Summary(step), 0, "it"
    try:
        for index, raw in enumerate(_list(_dict(data), "segments")):
            place = f"segments[{index}]"
            segment = _dict(raw)
            num_blocks += len(_list(segment, "blocks"))
            if num_blocks > MAX_BLOCKS:
                raise UsageError(f"{path} holds more than {MAX_BLOCKS:,} blocks, the most that are read.")
            _add_segment(summary, stacks, segment)
        place = "a stack"
        summary.sites = _sites(stacks)
    except _NotASnapshot as error:
        raise UsageError(f"{path} is a pickle, but no memory snapshot: {place} {error}.") from error
    return summary


def _add_segment(summary: Summary, stacks: "_Stacks", segment: Mapping[str, object]) -> None:
    """Add a segment, memory taken from the driver at once, and its blocks to the sums."""
    total = _num_bytes(segment, "total_size")
    can_be_split = segment.get("is_expandable") is not True  # free pages of expandable ones can be given back
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
            raise _NotASnapshot(f"has a block whose state is none of {', '.join(_STATES)}")
        frames = block.get("frames") or []
        if not isinstance(frames, list):
            raise _NotASnapshot("has a block whose frames are no list")
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


_Stacks = dict[tuple[int, ...], tuple[list[object], Counter[int]]]  # frames, and blocks by size, by ids


def _sites(stacks: _Stacks) -> SiteSizes:
    """Return the blocks by size of each stack that a file has, whether the file shares its frames or not."""
    frames: dict[int, Frame] = {}
    sites: dict[Stack, Counter[int]] = {}
    for raw, sizes in stacks.values():
        frames |= {id(each): _frame(each) for each in raw if id(each) not in frames}
        sites.setdefault(tuple(frames[id(each)] for each in raw), Counter()).update(sizes)
    return sites


def _frame(raw: object) -> Frame:
    """Return a frame of the file, its texts safe to print: short, and without control characters."""
    fields = _dict(raw)
    texts = [fields.get(key) for key in ("filename", "name")]
    filename, name = (printable(each, _MAX_TEXT) if isinstance(each, str) else "?" for each in texts)
    line = fields.get("line")
    return Frame(filename, line if isinstance(line, int) and 0 <= line < _MAX_LINE else 0, name)


class _NotASnapshot(Exception):
    """What a part of the file has that PyTorch never writes; the message follows the name of the part."""


def _dict(raw: object) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise _NotASnapshot("has something else where a dict is due")
    return raw


def _list(fields: Mapping[str, object], key: str) -> list[object]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise _NotASnapshot(f"has no list of {key}")
    return value


def _num_bytes(fields: Mapping[str, object], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value < 2**64:
        raise _NotASnapshot(f"has a {key} that is missing or no number of bytes")
    return value
