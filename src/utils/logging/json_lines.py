"""Logs with one JSON object per line. A resumed run drops the lines after its checkpoint."""

import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import zstandard

from ..durable_io import MALFORMED, open_regular, parse_json, reading, replace_file, writing
from ..errors import UserError

METRICS_FILE = "metrics.jsonl"
COMPRESSED = ".zst"
"""Suffix of a log that `zstd` compressed. It is read if the log itself is missing."""
_LINE_BYTES = 2**20
_NAMES_OF_NUMBERS = ("NaN", "Infinity", "-Infinity")


class JsonLines:
    """Appends objects with a `step`. `write` hands them to the system before it returns.

    Numbers that are not finite are written as "NaN", "Infinity" or "-Infinity", which `float()` accepts. If
    the file exists, a last line left incomplete by a crash is dropped, and so are the steps after
    `resume_step`, which the run repeats.

    Raises:
        UserError: If an existing file has other contents. It is not changed in this case.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self._path = path
        if (stored := stored_log(path)) != path:
            raise UserError(
                f"{stored} is compressed and cannot be continued. Run zstd -d --rm {stored} first."
            )
        if os.path.lexists(path):
            self._keep(lambda values: resume_step is None or values["step"] <= resume_step)
        self._file = path.open("a", encoding="utf-8")

    def drop(self, step: int, groups: tuple[str, ...]) -> None:
        """Drop the lines of a step that have a key starting with one of `groups`."""
        self.close()
        self._keep(lambda values: values["step"] != step or not any(key.startswith(groups) for key in values))
        self._file = self._path.open("a", encoding="utf-8")

    def _keep(self, is_wanted: Callable[[dict[str, Any]], bool]) -> None:
        path = self._path
        numbered = _whole_lines(path)
        replace_file(path, (line for number, line in numbered if is_wanted(_parsed(line, path, number))))

    def write(self, *lines: Mapping[str, object]) -> None:
        """Write one line for each flat object. Each has an integer `step`."""
        named = ({key: _named(value) for key, value in line.items()} for line in lines)
        texts = (json.dumps(line, allow_nan=False) + "\n" for line in named)
        with writing(self._path):
            self._file.write("".join(texts))
            self._file.flush()

    def flush(self) -> None:
        """Flush the lines to disk, so that they survive a power loss."""
        with writing(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. Calling this again has no effect."""
        with writing(self._path):
            self._file.close()


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each complete line with its number, starting at 1. A crash may leave an incomplete last line."""
    stored = stored_log(path)
    with reading(stored), _opened(stored) as file:
        number = 0
        while line := file.readline(_LINE_BYTES):
            number += 1
            if line.endswith(b"\n"):
                yield number, line
            elif len(line) == _LINE_BYTES:
                raise malformed_line_error(path, number)


def stored_log(path: Path) -> Path:
    """Return the path of a log, or of its compressed copy if only the copy exists."""
    compressed = path.with_name(path.name + COMPRESSED)
    return path if os.path.lexists(path) or not os.path.lexists(compressed) else compressed


def _opened(path: Path) -> io.BufferedIOBase:
    """Open a log, decompressing it if needed. Raise `ValueError` if a compressed log is truncated."""
    file = open_regular(path)
    if path.suffix != COMPRESSED:
        return file
    with file:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        text = decompressor.decompress(file.read())
    if not decompressor.eof:
        raise ValueError("its end is missing")
    return io.BytesIO(text)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object of each complete line of a log, or of its copy `<path>.zst` if only the copy exists.

    Raises:
        UserError: If a line is malformed.
    """
    for number, line in _whole_lines(path):
        yield _parsed(line, path, number)


def malformed_line_error(path: Path, number: int) -> UserError:
    """Return the error for a malformed line, with its number starting at 1."""
    return UserError(f"Line {number:,} of {path} was not written by Reverie. Delete this line and try again.")


def _named(value: object) -> object:
    """Return the value, or the name that protocol buffers' JSON gives to a non-finite number."""
    return value if not isinstance(value, float) or math.isfinite(value) else json.dumps(value)


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """Return a line's object, or raise `malformed_line_error` if `JsonLines` cannot have written it."""
    try:
        values: dict[str, Any] = parse_json(line)
        if type(values["step"]) is int and values["step"] >= 0 and all(map(_is_ours, values.values())):
            return values
    except MALFORMED:
        pass
    raise malformed_line_error(path, number)


def _is_ours(value: object) -> bool:
    """Return whether a value is valid: a 64-bit number, the name of a non-finite number, or a list."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if isinstance(value, float):
        return math.isfinite(value)
    return value in _NAMES_OF_NUMBERS or isinstance(value, list)
