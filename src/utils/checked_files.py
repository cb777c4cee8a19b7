"""Files that are on disk once their writer returns, and whose damage is found: bytes, JSON, safetensors.

safetensors is a header of names, dtypes and shapes, then raw bytes: reading it can run no code. It is written
here and not by its library, so that one pass writes and sums, with no copy of what lies in host memory.
"""

import hashlib
import json
import os
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

from .errors import UserError, printable
from .own_files import open_own, read_own

PIECE_BYTES = 8_000_000
"""Most that is copied at once on its way from a GPU to disk."""

JSON_BYTES = 256 * 2**20
"""Most that a JSON file may have: the manifest of a replay of 800,000 files."""

_SAFETENSORS_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_WRONG_CONTENT = (
    SafetensorError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,  # torch's for shapes, and what Python says of deep nests
    TypeError,
    ValueError,
)
_MOST_DIGITS = 40  # the states of generators have 128 bits
_REPAIR = "Put it back from a copy, or start a new run."


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file was when it was written."""

    nbytes: int

    sha256: str
    """In hexadecimal digits."""


def write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> FileRecord:
    """Write a new file and bring it to disk; the name is on disk only after `folder_to_disk` of its folder.

    Raises:
        OSError: If the file exists (nothing is ever overwritten), or the disk is full or fails.
    """
    digest, nbytes = hashlib.sha256(), 0
    with writing(path), path.open("xb") as file:
        for piece in pieces:
            digest.update(piece)
            nbytes += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(nbytes, digest.hexdigest())


def write_json(path: Path, value: Any) -> FileRecord:
    """Write a JSON value as `write_file` does; NaN and infinities are written as Python reads them."""
    return write_file(path, [json.dumps(value).encode()])


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    """Write tensors of any device as safetensors, as `write_file` does; a graph is dropped.

    Cost: no copy of tensors that lie contiguous in host memory, `PIECE_BYTES` for those of a GPU.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # so that each is aligned
    header, stop = {}, 0
    for name, tensor in ordered:
        start, stop = stop, stop + tensor.nbytes
        dtype = _SAFETENSORS_DTYPES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, stop]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = (piece for _, tensor in ordered for piece in _bytes_of(tensor))
    return write_file(path, chain([len(text).to_bytes(8, "little"), text], data))


def can_be_written(tensor: Tensor) -> bool:
    """Return whether safetensors knows the dtype."""
    return tensor.dtype in _SAFETENSORS_DTYPES


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
    """Turn what goes wrong inside, where the content of a file is taken up, into a sentence that names it.

    For files that are whole by their checksum and still not what Reverie writes. Nothing but taking up may
    happen inside: a fault of the program itself would be blamed on the file.

    Raises:
        UserError: In the place of every error that wrong content can lead to.
    """
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or _reason(error)}. {_REPAIR}") from error
    except _WRONG_CONTENT as error:
        raise not_written(path, _reason(error)) from error


def not_written(path: Path, reason: str) -> UserError:
    """Return the error for a file whose content is none that Reverie writes."""
    return UserError(f"{path} is not a file that Reverie wrote ({reason}). {_REPAIR}")


def _reason(error: Exception) -> str:
    """Return an error on one short line; it may quote the file, so nothing may steer a terminal."""
    first_line = next(iter(str(error).splitlines()), "")
    return printable(f"{type(error).__name__}: {first_line}")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file.

    Raises:
        UserError: If there is none in it, or it is no regular file.
    """
    with reading(path):
        return parse_json(read_own(path, JSON_BYTES))


def parse_json(data: bytes | str) -> Any:
    """Return the value in a JSON text.

    Raises:
        ValueError: If there is none in it, or a whole number that no generator's state has.
        RecursionError: If it is nested too deep.
    """
    return json.loads(data, parse_int=_whole_number)


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits):,} digits")
    return int(digits)


def read_tensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; on the CPU they are a private view of the file.

    Raises:
        UserError: If it is of another kind, or no regular file.
    """
    with reading(path), open_own(path) as file:  # the library would wait for a pipe, and takes UTF-8 alone
        return load_file(f"/dev/fd/{file.fileno()}", device=str(device))


def fault_of(path: Path, record: FileRecord) -> str | None:
    """Return what is wrong with a file, as the end of a sentence that begins with its name, or None.

    Cost: reads the file once, at 0.3 to 2 GB/s.
    """
    try:
        with open_own(path) as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes != record.nbytes:
                return f"has {nbytes:,} bytes instead of {record.nbytes:,}"
            if hashlib.file_digest(file, "sha256").hexdigest() != record.sha256:
                return "is not what was written: its checksum differs"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def folder_to_disk(folder: Path) -> None:
    """Bring the names of a folder's files to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _bytes_of(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor; those of a GPU in pieces."""
    flat = tensor.detach().contiguous().view(-1)
    size = max(1, flat.numel() if flat.device.type == "cpu" else PIECE_BYTES // flat.element_size())
    for piece in flat.split(size):
        yield piece.cpu().view(torch.uint8).numpy().data
