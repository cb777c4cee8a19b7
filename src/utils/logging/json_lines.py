"""A log of one JSON object a line, of which a resumed run drops what came after its checkpoint."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from ..checked_files import writing
from ..errors import UserError


class JsonLines:
    """Appends objects that hold a `step`; they are out of the process when `write` returns.

    JSON has no NaN: a number that is not finite is written as "NaN", "Infinity" or "-Infinity", which
    `float()` reads.

    Args:
        path: The file, continued when there is one. A last line that a crash left unfinished is dropped.
        resume_step: Agent steps of the checkpoint the run goes on from. Lines of later steps, written between
            that checkpoint and a crash, are dropped, because the run writes them again.

    Raises:
        UserError: If the file holds something else; nothing is written then.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self._path = path
        if path.exists():
            _drop_unwanted_lines(path, resume_step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, *lines: Mapping[str, object]) -> None:
        """Write flat objects, each with an integer `step`, as a line each."""
        texts = (json.dumps(_finite(line), allow_nan=False) + "\n" for line in lines)
        with writing(self._path):
            self._file.write("".join(texts))
            self._file.flush()

    def to_disk(self) -> None:
        """Bring the lines to disk, where a loss of power leaves them."""
        with writing(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with writing(self._path):
            self._file.close()


def strange_line(path: Path, number: int) -> UserError:
    """Return the error of a line, counted from 1, that no run has written."""
    return UserError(f"Line {number:,} of {path} is none that Reverie wrote. Delete that line and try again.")


def _finite(line: Mapping[str, object]) -> dict[str, object]:
    """Return the object with a name for each number that JSON has none for."""
    return {key: _json_number(value) if isinstance(value, float) else value for key, value in line.items()}


def _json_number(number: float) -> float | str:
    """Return the number, or its name in the spelling of protocol buffers' JSON when JSON has none."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")


def _drop_unwanted_lines(path: Path, resume_step: int | None) -> None:
    """Drop a last line that a crash left unfinished, and the lines of steps after `resume_step`."""
    kept_path = path.with_suffix(".tmp")
    try:
        with writing(kept_path), path.open("rb") as lines, kept_path.open("wb") as kept:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break
                if resume_step is None or _step_of(line, path, number) <= resume_step:
                    kept.write(line)
            kept.flush()
            os.fsync(kept.fileno())
        os.replace(kept_path, path)
    finally:
        kept_path.unlink(missing_ok=True)


def _step_of(line: bytes, path: Path, number: int) -> int:
    """Return the step of a line.

    Raises:
        UserError: If it has none; the whole run shall not depend on one line of its log.
    """
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        step = None
    if type(step) is not int:
        raise strange_line(path, number)
    return step
