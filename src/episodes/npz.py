"""npz files of unknown origin: no pickle, nothing evaluated, every size checked before it is allocated."""

import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..utils.durable_io import open_regular, write_file
from ..utils.units import count_text
from .episode import DTYPES, MOST_BYTES, check_size, check_total, judging

_MOST_MEMBERS, _MOST_DIRECTORY_BYTES = 256, 2**16
_DEFLATE_RATIO = 1032  # the most that deflate gains: 258 bytes for 2 bits
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    r"\{'descr': '([^'\\]{1,20})', 'fortran_order': (True|False), 'shape': \(([-\d, ]{0,200})\), \} *\n"
)
"""The header of version 1.0 as numpy writes it; other versions, and structured dtypes, are not read."""


def read_npz(path: Path, is_wanted: Callable[[str], bool]) -> dict[str, NDArray]:
    """Return the arrays of an npz file whose names are wanted, read-only.

    Raises:
        UserError: If it is no regular file, too large, damaged, or holds what is no plain array.
    """
    with judging(path, zipfile.BadZipFile, zlib.error, struct.error), open_regular(path, MOST_BYTES) as file:
        _check_directory(file)
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise ValueError("it holds two arrays of one name")
            wanted = {name: info for name, info in members.items() if is_wanted(name)}
            check_total(sum(info.file_size for info in wanted.values()))
            return {name: _read(archive, name, info) for name, info in wanted.items()}


def _check_directory(file: io.BufferedReader) -> None:
    """Check the size of the zip's directory, which the library reads at once."""
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - 42))
    tail = file.read(42)
    before, end = tail[:-22], tail[-22:]  # before: where a longer kind of end would be announced
    if len(end) < 22 or end[:4] != b"PK\5\6" or end[20:] != b"\0\0" or before[:4] == b"PK\6\7":
        raise ValueError("it does not end as an npz file does")
    count, nbytes = struct.unpack("<HL", end[10:16])
    if count > _MOST_MEMBERS or nbytes > _MOST_DIRECTORY_BYTES:
        raise ValueError(f"it holds {count_text(count, 'array')}, and at most {_MOST_MEMBERS} are read")


def _read(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> NDArray:
    """Return one array; its header, its share of the zip and its bytes must say the same."""
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"`{name}` is encrypted or compressed in a way that numpy does not")
    if info.file_size > _DEFLATE_RATIO * (info.compress_size + 1):
        raise ValueError(f"`{name}` would grow from {info.compress_size:,} to {info.file_size:,} bytes")
    with archive.open(info) as member:
        start = member.read(len(_MAGIC) + 2)
        header_bytes = int.from_bytes(start[len(_MAGIC) :], "little")
        header = _HEADER.fullmatch(member.read(header_bytes).decode("latin1"))
        if start[: len(_MAGIC)] != _MAGIC or header is None or header[1] not in DTYPES:
            raise ValueError(f"`{name}` is no array of plain numbers as numpy writes it")
        dtype, shape = DTYPES[header[1]], tuple(int(size) for size in re.findall(r"-?\d+", header[3]))
        nbytes, held = check_size(name, shape, dtype), info.file_size - len(start) - header_bytes
        if nbytes != held:
            raise ValueError(
                f"`{name}` says it has {nbytes:,} bytes, of {shape} {dtype}, but {held:,} follow"
            )
        data = member.read(nbytes)
        if len(data) != nbytes or member.read(1):  # the second read also compares the checksum
            raise ValueError(f"`{name}` ends early")
    flat = np.frombuffer(data, np.uint8) != 0 if dtype == np.bool_ else np.frombuffer(data, dtype)
    return flat.reshape(shape[::-1]).T if header[2] == "True" else flat.reshape(shape)


def write_npz(path: Path, arrays: Mapping[str, NDArray]) -> None:
    """Write a new npz file, compressed, as `numpy.savez_compressed` does, on disk on return."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(values), allow_pickle=False)
    write_file(path, [stream.getbuffer()])
