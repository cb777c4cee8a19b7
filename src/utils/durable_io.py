"""Durable, verified files: on disk once their writer returns, with a checksum, and read with bounds.

A run folder may come from a stranger: only regular files are opened, and JSON and safetensors run no code.
"""

import errno
import hashlib
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from zstandard import ZstdError

from .errors import UserError, printable

UNFINISHED = ".unfinished"
"""Ends the name of what is being written."""

_SHOWN_LETTERS = 40  # of a name in that of its temporary folder: names have at most 255 bytes

PIECE_BYTES = 8_000_000
"""Most that is copied at once on its way from a GPU to disk."""

JSON_BYTES = 256 * 2**20
"""Largest JSON file that is read: the manifest of a replay of 800,000 files."""

_DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
SAFETENSORS_DTYPES = {
    getattr(torch, name): name.replace("float", "f").replace("uint", "u").replace("int", "i").upper()
    for name in _DTYPES.split()
}
"""The dtypes that `write_tensors` writes, and their names in the format."""

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What to parse and to use a JSON text may raise that Reverie did not write."""

_WRONG_CONTENT = (
    *MALFORMED,
    SafetensorError,
    ZstdError,
    ArithmeticError,
    AssertionError,
    LookupError,
    RuntimeError,
)
_MOST_DIGITS = 40  # the states of generators have 128 bits
_REPAIR = "Put it back from a copy, or start a new run."
_KINDS = {"p": "a pipe", "d": "a folder", "c": "a device", "b": "a device", "s": "a socket"}


class Damaged(Exception):
    """A file is not what was written; the message names it and says what is wrong."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and checksum (hexadecimal digits) of a file when it was written."""

    nbytes: int
    sha256: str


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> FileRecord:
    """Write a new file and bring it to disk; its name is on disk only after `fsync_dir` of its folder.

    An `OSError` if the file exists (nothing is ever overwritten), or the disk is full or fails.
    """
    digest, nbytes = hashlib.sha256(), 0
    with writing(path), path.open("xb") as file:
        for piece in pieces:
            digest.update(piece)
            nbytes += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(nbytes, digest.hexdigest())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path for a new file or folder, which then replaces `path`; any error leaves `path` as it was.

    The yielded path has the same name, in a new temporary folder beside `path`. Only this folder is deleted:
    whatever else has a similar name may belong to the user.
    """
    shown = f".{path.name[:_SHOWN_LETTERS]}."
    outer = Path(tempfile.mkdtemp(prefix=shown, suffix=UNFINISHED, dir=path.parent))
    try:
        yield outer / path.name
        os.replace(outer / path.name, path)
    except OSError as error:
        if not str(error.filename).startswith(str(outer)):
            raise
        # With the name that the user knows; in PyAV's errors it cannot be changed.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def replace_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Put a file in the place of an older one, on disk whole or, after any error, not at all."""
    with replacing(path) as unfinished:
        write_file(unfinished, pieces)
    fsync_dir(path.parent)


def write_json(path: Path, value: Any) -> FileRecord:
    """Write a JSON value as `write_file` does; NaN and infinities are written as Python reads them."""
    return write_file(path, [json.dumps(value).encode()])


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    """Write tensors of any device as safetensors, as `write_file` does; a graph is dropped.

    The format's library copies everything on a GPU to the host at once, and takes a full disk for an error
    of the format. Cost: no copy of tensors contiguous in host memory, `PIECE_BYTES` for those of a GPU.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # so that each is aligned
    header, stop = {}, 0
    for name, tensor in ordered:
        start, stop = stop, stop + tensor.nbytes
        dtype = SAFETENSORS_DTYPES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, stop]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = (piece for _, tensor in ordered for piece in _bytes_of(tensor))
    return write_file(path, chain([len(text).to_bytes(8, "little"), text], data))


def _bytes_of(tensor: Tensor) -> Iterator[memoryview]:
    flat = tensor.detach().contiguous().view(-1)
    size = max(1, flat.numel() if flat.device.type == "cpu" else PIECE_BYTES // flat.element_size())
    for piece in flat.split(size):
        yield piece.cpu().view(torch.uint8).numpy().data


def fsync_dir(folder: Path) -> None:
    """Bring the names of a folder's files to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let the error of a full or failing disk name the file, which the system does for `open` alone."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            with suppress(AttributeError):  # those of the video library cannot be changed
                error.filename = str(path)
        raise


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors inside, where the content of a file is used, into a `UserError` that names the file.

    Nothing else may happen inside: a fault of the program itself would be blamed on the file.
    """
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or _reason(error)}. {_REPAIR}") from error
    except _WRONG_CONTENT as error:
        raise corrupt_file_error(path, _reason(error)) from error


def corrupt_file_error(path: Path, reason: str) -> UserError:
    """Return the error for a file whose content Reverie does not write."""
    return UserError(f"{path} is not a file that Reverie wrote ({reason}). {_REPAIR}")


def _reason(error: Exception) -> str:
    first_line = next(iter(str(error).splitlines()), "")
    return printable(f"{type(error).__name__}: {first_line}")  # it may quote the file


def open_regular(path: Path, most_bytes: int | None = None) -> io.BufferedReader:
    """Open a regular file of at most `most_bytes`, without waiting for a pipe or following a link.

    Folders on the way to it may be links. The `strerror` of an `OSError` says what it is instead.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "it is a link, not a regular file"
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.filemode(status.st_mode)[0], "of an unknown kind")
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
        if most_bytes is not None and status.st_size > most_bytes:
            reason = f"it has {status.st_size:,} bytes, and at most {most_bytes:,} are read"
            raise OSError(errno.EFBIG, reason, str(path))
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def read_regular(path: Path, most_bytes: int = JSON_BYTES) -> bytes:
    """Return the bytes of a regular file; raises as `open_regular` does."""
    with open_regular(path, most_bytes) as file:
        # Python allocates as many bytes as are asked for, which address-space limits count.
        return file.read(os.fstat(file.fileno()).st_size)


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; a `UserError` if it is no such file."""
    with reading(path):
        return parse_json(read_regular(path))


def parse_json(data: bytes | str) -> Any:
    """Return the value in a JSON text; a `ValueError` or (nested too deep) a `RecursionError` if none."""
    return json.loads(data, parse_int=_whole_number)


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits):,} digits")
    return int(digits)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, a private view of it; a `UserError` if it is none."""
    # Opened here: the library would wait for a pipe, and takes names in UTF-8 alone.
    with reading(path), open_regular(path) as file:
        return load_file(f"/dev/fd/{file.fileno()}")


def verify_file(path: Path, record: FileRecord) -> None:
    """Raise `Damaged` if a file is not what was written; reads it once, at 0.3 to 2 GB/s."""
    try:
        with open_regular(path) as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes != record.nbytes:
                raise Damaged(f"{path} has {nbytes:,} bytes instead of {record.nbytes:,}")
            if hashlib.file_digest(file, "sha256").hexdigest() != record.sha256:
                raise Damaged(f"{path} is not what was written: its checksum differs")
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing") from error
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
