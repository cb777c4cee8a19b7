"""Errors that a user can fix, and how a command reports them."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from .texts import printable

USAGE_EXIT_CODE = 2


class UsageError(ValueError):
    """An invalid argument. The message contains the value, the limit and the fix."""


class FlagParser(argparse.ArgumentParser):
    """Raises a `UsageError` for an invalid flag instead of printing the usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise `message`."""
        raise UsageError(f"{message}. --help lists the flags.")


@contextmanager
def exit_on_usage_error() -> Iterator[None]:
    """Print a `UsageError` or a failed write to stdout as one line on stderr, and exit with code 2."""
    try:
        yield
        try:
            sys.stdout.flush()
        except OSError as error:
            # Python would fail again when it closes the descriptor at exit.
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
            raise UsageError(f"the output cannot be written: {error.strerror}.") from error
    except UsageError as error:
        sys.stderr.write(f"error: {printable(' '.join(str(error).split()), None)}\n")
        raise SystemExit(USAGE_EXIT_CODE) from None
