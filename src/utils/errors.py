"""Errors that a user can repair: shown as one sentence, exit code 2, never a traceback."""

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

USER_ERROR_EXIT_CODE = 2
_MOST_CHARACTERS = 200


class UserError(ValueError):
    """What was asked, the limit by the name the user typed, and the repair, in one message."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean `x`?' for the nearest known name, or '' when none is near.

    >>> did_you_mean("bufer", ["buffer", "env"])
    ' Did you mean `buffer`?'
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean `{close[0]}`?" if close else ""


def with_place(error: BaseException) -> str:
    """Return 'FileNotFoundError: no level.bin (world.py, line 12)' for an error of code that is not ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    is_placed = frames and not isinstance(error, SyntaxError)  # which names its place itself
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if is_placed else ""
    return f"{type(error).__name__}: {error}{place}"


class _Output:
    """Standard output that turns its failure into a `UserError`: a full disk, a pipe that nobody reads."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write."""
        with self._failing():
            count = self._file.write(text)
        return count

    def flush(self) -> None:
        """Write what waits."""
        with self._failing():
            self._file.flush()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with suppress(OSError), open(os.devnull, "w") as nowhere:  # or Python fails once more at its end
                os.dup2(nowhere.fileno(), self._file.fileno())
            raise UserError(f"the output cannot be written: {error.strerror}.") from error


def printable(text: str, most: int | None = _MOST_CHARACTERS) -> str:
    r"""Return a text of at most `most` characters without those that steer a terminal, or are none.

    >>> printable("red: \x1b[31m")
    'red: ?[31m'
    """
    return "".join(c if c.isprintable() else "?" for c in text[:most])


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a `UserError` inside into one line on stderr and exit code 2, without a traceback.

    Output that cannot be written is one. A decorator of the `main` of every command.
    """
    with open(os.devnull, "w") as nowhere:
        output = _Output(sys.stdout or nowhere)  # there is none if its descriptor was closed
        try:
            with redirect_stdout(cast(TextIO, output)):
                try:
                    yield
                except BaseException as error:
                    is_success = isinstance(error, SystemExit) and not error.code  # as after --help
                    with nullcontext() if is_success else suppress(UserError):  # the first error counts
                        output.flush()
                    raise
                output.flush()
        except UserError as error:
            sys.stderr.write(f"error: {printable(' '.join(str(error).split()), None)}\n")
            raise SystemExit(USER_ERROR_EXIT_CODE) from None


def require_current_folder() -> None:
    """Exit with code 2 in a folder that is gone; torch's libraries would end the process with a riddle."""
    with exit_on_user_error():
        try:
            os.getcwd()
        except FileNotFoundError as error:
            raise UserError("the current folder is gone. Change to one that is there, as by cd ~.") from error


class FlagParser(argparse.ArgumentParser):
    """argparse whose complaint is a `UserError` instead of usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has to say."""
        raise UserError(f"{message}; --help shows how to write the command.")
