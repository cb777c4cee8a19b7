"""Format numbers, names and errors, and write text files atomically."""

import os
import traceback
from collections.abc import Container, Sequence
from pathlib import Path

_MOST_CHARACTERS = 400


def count_text(number: float, noun: str) -> str:
    """Return a number with its noun in the singular or plural.

    >>> count_text(1, "update"), count_text(12_365, "update")
    ('1 update', '12,365 updates')
    """
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{text} {noun}" if number == 1 else f"{text} {noun}s"


def size_text(nbytes: float) -> str:
    """Return a number of bytes in the largest unit that does not exceed it.

    >>> size_text(105_600_000), size_text(64_000), size_text(20)
    ('105.6 MB', '64.0 kB', '20 B')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:,.1f} {unit}"
    return f"{nbytes:,.0f} B"


def printable(text: str, most: int | None = _MOST_CHARACTERS) -> str:
    r"""Return at most `most` characters of a string, with `?` for control characters.

    >>> printable("red: \x1b[31m")
    'red: ?[31m'
    """
    return "".join(c if c.isprintable() else "?" for c in text[:most])


def aligned(rows: Sequence[Sequence[str]], left: Container[str] = ()) -> list[str]:
    """Format rows as aligned columns. Headings in `left` align to the left, all others to the right.

    >>> aligned([("object", "MB"), ("replay", "780.79")], left=["object"])
    ['object      MB', 'replay  780.79']
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    columns = zip(rows[0], widths, strict=True)
    form = "  ".join(f"{{:{'<' if heading in left else '>'}{width}}}" for heading, width in columns)
    return [form.format(*row).rstrip() for row in rows]


def with_place(error: BaseException) -> str:
    """Return 'FileNotFoundError: no level.bin (world.py, line 12)' for an error of the user's code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    # The message of a syntax error already contains its place.
    is_placed = frames and not isinstance(error, SyntaxError)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if is_placed else ""
    return f"{type(error).__name__}: {error}{place}"


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: a process killed during the write leaves the previous version."""
    # The name contains the process id, because another program may write to the same folder.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Names in the program may contain surrogates.
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
