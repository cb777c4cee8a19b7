"""Read untrusted npz files without pickle or `eval`. Sizes are checked before memory is allocated."""

import io
import os
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.lib.format as npy
from numpy.typing import NDArray

from ..buffers import EpisodeRecords
from ..utils.durable_io import open_regular, write_file
from ..utils.units import count_text
from .episode import MOST_BYTES, STEP_KEYS, check_size, check_total, judging

_MOST_MEMBERS, _MOST_DIRECTORY_BYTES = 256, 2**16
# The maximum compression ratio of deflate: 258 bytes from 2 bits.
_DEFLATE_RATIO = 1032
# The libraries raise these for damaged zips and invalid headers, in addition to the exceptions of `judging`.
_WRONG_FILE = (zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, tokenize.TokenError, MemoryError)


def read_steps(
    path: Path, is_read: Callable[[str], bool], skipped: Counter[str], keys: Iterable[str] = ()
) -> dict[str, NDArray]:
    """Return the arrays of an npz file as `read_npz` does, with flags as bool arrays of shape (records,).

    Raises:
        UserError: See `read_npz`. Also if any of `STEP_KEYS` or `keys` is missing, or a flag's shape is
            wrong.
    """
    arrays = read_npz(path, is_read, skipped)
    with judging(path):
        if missing := {*STEP_KEYS, *keys} - arrays.keys():
            raise ValueError(f"it has no `{min(missing)}`. Its arrays: {', '.join(sorted(arrays)) or 'none'}")
        for name in STEP_KEYS[2:]:
            if arrays[name].ndim != 1:
                raise ValueError(f"`{name}` has the shape {arrays[name].shape}, not one flag per record")
            arrays[name] = arrays[name].astype(np.bool_)
    return arrays


def led_arrays(episode: EpisodeRecords) -> dict[str, NDArray]:
    """Return an episode's arrays, with each action in the row of the record that it led to."""
    position = np.arange(len(episode.reward))
    is_last = position == len(position) - 1
    led = np.concatenate([np.zeros_like(episode.action[:1]), episode.action[:-1]])
    of_step = (led, episode.reward, position == 0, is_last, is_last & episode.is_terminal)
    return {**episode.observation, **dict(zip(STEP_KEYS, of_step, strict=True))}


def read_npz(path: Path, is_read: Callable[[str], bool], skipped: Counter[str]) -> dict[str, NDArray]:
    """Return the arrays of an npz file whose names satisfy `is_read`. Count all others in `skipped`.

    Raises:
        UserError: If the file is not regular, too large or damaged, or contains anything but plain arrays.
    """
    with judging(path, *_WRONG_FILE), open_regular(path, MOST_BYTES) as file:
        _check_directory(file)
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise ValueError("it has two arrays with the same name")
            wanted = {name: info for name, info in members.items() if is_read(name)}
            skipped.update(members.keys() - wanted.keys())
            check_total(sum(info.file_size for info in wanted.values()))
            return {name: _read(archive, name, info) for name, info in wanted.items()}


def _check_directory(file: io.BufferedReader) -> None:
    """Check the size of the zip's directory, because the library reads all of it into memory."""
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - 42))
    tail = file.read(42)
    # A zip64 file has a locator in front of the end record.
    before, end = tail[:-22], tail[-22:]
    if len(end) < 22 or end[:4] != b"PK\5\6" or end[20:] != b"\0\0" or before[:4] == b"PK\6\7":
        raise ValueError("it does not end as an npz file should")
    count, nbytes = struct.unpack("<HL", end[10:16])
    if count > _MOST_MEMBERS or nbytes > _MOST_DIRECTORY_BYTES:
        raise ValueError(f"it has {count_text(count, 'array')}, but at most {_MOST_MEMBERS} are allowed")


def _read(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> NDArray:
    """Return one array after checking that its header, its zip entry and its size are consistent."""
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"`{name}` is encrypted, or compressed with a method that numpy does not use")
    if info.file_size > _DEFLATE_RATIO * (info.compress_size + 1):
        raise ValueError(f"`{name}` would grow from {info.compress_size:,} to {info.file_size:,} bytes")
    with archive.open(info) as member:
        if npy.read_magic(member) != (1, 0):
            raise ValueError(f"`{name}` is not in version 1.0 of numpy's format for plain numbers")
        shape, _, dtype = npy.read_array_header_1_0(member)
        nbytes, held = check_size(name, shape, dtype), info.file_size - member.tell()
        if nbytes != held:
            raise ValueError(
                f"the header of `{name}` declares {nbytes:,} bytes, {shape} {dtype}, but {held:,} follow"
            )
    with archive.open(info) as member:
        values = npy.read_array(member, allow_pickle=False)
    return values.view(np.uint8) != 0 if dtype == np.bool_ else values


def write_npz(path: Path, arrays: Mapping[str, NDArray]) -> None:
    """Write a new compressed npz file, like `numpy.savez_compressed`, and sync it to disk."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, np.ascontiguousarray(values), allow_pickle=False)
    write_file(path, [stream.getbuffer()])
