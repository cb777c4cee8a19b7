"""Errors that a user can repair: shown as one sentence, exit code 2, never a traceback."""

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

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


def printable(text: str, most: int | None = _MOST_CHARACTERS) -> str:
    r"""Return a text of at most `most` characters without those that steer a terminal, or are none.

    >>> printable("red: \x1b[31m")
    'red: ?[31m'
    """
    return "".join(c if c.isprintable() else "?" for c in text[:most])


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a `UserError` inside into one line on stderr and exit code 2, without a traceback."""
    try:
        yield
    except UserError as error:
        sys.stderr.write(f"error: {printable(' '.join(str(error).split()), None)}\n")
        raise SystemExit(USER_ERROR_EXIT_CODE) from None


def require_current_folder() -> None:
    """Refuse to start in a folder that is gone; torch's libraries would end the process with a riddle.

    Raises:
        SystemExit: With code 2.
    """
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
