"""A log of one JSON object a line, from which a resumed run drops what came after its checkpoint."""

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

COMPRESSED = ".zst"
"""Suffix of a log that the program `zstd` has compressed; it is read where the log itself is missing."""
_LINE_BYTES = 2**20
_NAMES_OF_NUMBERS = ("NaN", "Infinity", "-Infinity")


class JsonLines:
    """Appends objects that hold a `step`; they are out of the process when `write` returns.

    A number that is not finite is written as "NaN", "Infinity" or "-Infinity", which `float()` reads. A file
    that is there is continued, without a last line that a crash left unfinished, and without lines of steps
    after `resume_step`, which the run writes again. If it holds something else, a `UserError`, and nothing is
    written.
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
        """Drop the lines of a step that have a key which begins with one of `groups`."""
        self.close()
        self._keep(lambda values: values["step"] != step or not any(key.startswith(groups) for key in values))
        self._file = self._path.open("a", encoding="utf-8")

    def _keep(self, is_wanted: Callable[[dict[str, Any]], bool]) -> None:
        path = self._path
        numbered = _whole_lines(path)
        replace_file(path, (line for number, line in numbered if is_wanted(_parsed(line, path, number))))

    def write(self, *lines: Mapping[str, object]) -> None:
        """Write flat objects, each with an integer `step`, as a line each."""
        named = ({key: _named(value) for key, value in line.items()} for line in lines)
        texts = (json.dumps(line, allow_nan=False) + "\n" for line in named)
        with writing(self._path):
            self._file.write("".join(texts))
            self._file.flush()

    def flush(self) -> None:
        """Bring the lines to disk, where a loss of power leaves them."""
        with writing(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with writing(self._path):
            self._file.close()


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its number, from 1 on, but for a last one that a crash left unfinished."""
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
    """Return the path of a log, or that of its compressed copy if only the copy exists."""
    compressed = path.with_name(path.name + COMPRESSED)
    return path if os.path.lexists(path) or not os.path.lexists(compressed) else compressed


def _opened(path: Path) -> io.BufferedIOBase:
    """Open a log, decompressed; raises `ValueError` if the end of a compressed one is missing."""
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
    """Yield the object of each whole line of a log, or of its copy `<path>.zst` if only that exists.

    Raises:
        UserError: If a line is not one that Reverie wrote.
    """
    for number, line in _whole_lines(path):
        yield _parsed(line, path, number)


def malformed_line_error(path: Path, number: int) -> UserError:
    """Return the error of a line, counted from 1, that no run has written."""
    return UserError(f"Line {number:,} of {path} is none that Reverie wrote. Delete that line and try again.")


def _named(value: object) -> object:
    """Return the value, or its name in protocol buffers' JSON if it is a number that is not finite."""
    return value if not isinstance(value, float) or math.isfinite(value) else json.dumps(value)


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """Return the object of a line; raises `malformed_line_error` if `JsonLines` writes no such one."""
    try:
        values: dict[str, Any] = parse_json(line)
        if type(values["step"]) is int and values["step"] >= 0 and all(map(_is_ours, values.values())):
            return values
    except MALFORMED:
        pass
    raise malformed_line_error(path, number)


def _is_ours(value: object) -> bool:
    """Return whether a value is one that is written: a number of 64 bits, its name, or a list."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if isinstance(value, float):
        return math.isfinite(value)
    return value in _NAMES_OF_NUMBERS or isinstance(value, list)
