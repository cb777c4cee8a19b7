"""Durable files with checksums and bounded reads.

A file is on disk once its writer returns. Run folders may be untrusted, so only regular files are opened, and
only in formats that cannot execute code (JSON and safetensors).
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from heapwatch.files import open_regular as open_regular
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from zstandard import ZstdError

from .errors import UserError, printable

UNFINISHED = ".unfinished"
"""Suffix of files and folders that are being written."""

# A temporary folder's name copies this many characters of the file's name. Names have at most 255 bytes.
_SHOWN_LETTERS = 40

PIECE_BYTES = 8_000_000
"""Maximum bytes per copy from a GPU to disk."""

JSON_BYTES = 256 * 2**20
"""Maximum size of a JSON file. This is enough for the manifest of a replay of 800,000 files."""

_DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
SAFETENSORS_DTYPES = {
    getattr(torch, name): name.replace("float", "f").replace("uint", "u").replace("int", "i").upper()
    for name in _DTYPES.split()
}
"""Supported dtypes of `write_tensors`, with their names in the safetensors format."""

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors that parsing and using an untrusted JSON text may raise."""

_WRONG_CONTENT = (*MALFORMED, SafetensorError, ZstdError, EOFError)
_WRONG_CONTENT += (ArithmeticError, AssertionError, LookupError, RuntimeError)
# The states of random generators have 128 bits, i.e. at most 39 digits.
_MOST_DIGITS = 40
_PROBLEM = "is damaged, or was not written by Reverie"
_REPAIR = "Restore it from a copy, or start a new run."


class Damaged(Exception):
    """A file differs from its record. The message contains its path and the difference."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and checksum (hexadecimal digits) of a file when it was written."""

    nbytes: int
    sha256: str


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> FileRecord:
    """Write a new file and flush it to disk. Call `fsync_dir` on its folder to make its name durable too.

    Raises:
        OSError: If the file exists (it is never overwritten), or the disk is full or fails.
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
    """Yield a temporary path for a new file or folder, then atomically move it to `path`.

    If an error is raised, `path` stays unchanged. The yielded path has the same name and is in a new
    temporary folder in the same place. Only this folder is deleted, because files with similar names may
    belong to the user.
    """
    shown = f".{path.name[:_SHOWN_LETTERS]}."
    outer = Path(tempfile.mkdtemp(prefix=shown, suffix=UNFINISHED, dir=path.parent))
    try:
        yield outer / path.name
        os.replace(outer / path.name, path)
    except OSError as error:
        if not str(error.filename).startswith(str(outer)):
            raise
        # Report the final path instead of the temporary one. PyAV's errors are read-only, so raise a new one.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def replace_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace a file atomically and flush it to disk. If an error is raised, the old file stays unchanged."""
    with replacing(path) as unfinished:
        write_file(unfinished, pieces)
    fsync_dir(path.parent)


def write_json(path: Path, value: Any) -> FileRecord:
    """Write a JSON value with `write_file`. NaN and infinities use Python's notation."""
    return write_file(path, [json.dumps(value).encode()])


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    """Write detached tensors from any device as safetensors with `write_file`.

    This function replaces the writer of the safetensors library, which copies all GPU tensors to the host
    simultaneously and reports a full disk as a format error. Contiguous host tensors are not copied. GPU
    tensors need `PIECE_BYTES` of host memory.
    """
    # Sorting by element size aligns every tensor.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
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
    """Flush a folder's directory entries to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Add the path to errors from a full or failing disk. The system only adds it to errors from `open`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            # Errors from the video library are read-only.
            with suppress(AttributeError):
                error.filename = str(path)
        raise


@contextmanager
def reading(
    path: Path, *more: type[Exception], problem: str = _PROBLEM, repair: str = _REPAIR
) -> Iterator[None]:
    """Convert errors (and `more`) raised while using a file's content to a `UserError` with its path.

    Wrap only code that uses the content, because other bugs would be blamed on the file.
    """
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or _reason(error)}. {repair}") from error
    except (*_WRONG_CONTENT, *more) as error:
        raise UserError(f"{path} {problem} ({_reason(error)}). {repair}") from error


def corrupt_file_error(path: Path, reason: str) -> UserError:
    """Return the error for a file whose content Reverie never writes."""
    return UserError(f"{path} {_PROBLEM} ({reason}). {_REPAIR}")


def _reason(error: Exception) -> str:
    name = "" if type(error) is ValueError else f"{type(error).__name__}: "
    # The message may quote the file.
    return printable(name + next(iter(str(error).splitlines()), ""))


def read_regular(path: Path, most_bytes: int = JSON_BYTES) -> bytes:
    """Return the bytes of a regular file. See `open_regular` for errors."""
    with open_regular(path, most_bytes) as file:
        # Python allocates the full requested size, and it counts towards address-space limits.
        return file.read(os.fstat(file.fileno()).st_size)


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raise `UserError` if the file is invalid."""
    with reading(path):
        return parse_json(read_regular(path))


def parse_json(data: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If the text is not JSON, or contains an integer with more than 40 digits.
        RecursionError: If values are nested too deeply.
    """
    return json.loads(data, parse_int=_whole_number)


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number with {len(digits):,} digits")
    return int(digits)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return a safetensors file's tensors as a private memory map. Raise `UserError` for an invalid file."""
    # The library would wait for a pipe and only accepts UTF-8 names, so the file is opened here.
    with reading(path), open_regular(path) as file:
        return load_file(f"/dev/fd/{file.fileno()}")


def verify_file(path: Path, record: FileRecord) -> None:
    """Raise `Damaged` if a file differs from its record. The file is read once, at 0.3 to 2 GB/s."""
    try:
        with open_regular(path) as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes != record.nbytes:
                raise Damaged(f"{path} has {nbytes:,} bytes instead of {record.nbytes:,}")
            if hashlib.file_digest(file, "sha256").hexdigest() != record.sha256:
                raise Damaged(f"{path} is corrupt: its checksum does not match")
    except FileNotFoundError as error:
        raise Damaged(f"{path} is missing") from error
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
