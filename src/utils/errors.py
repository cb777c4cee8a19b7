"""Errors that a user can repair: shown as one sentence, exit code 2, never a traceback."""

import difflib
from collections.abc import Iterable

USER_ERROR_EXIT_CODE = 2


class UserError(ValueError):
    """What was asked, the limit by the name the user typed, and the repair, in one message."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean `x`?' for the nearest known name, or '' when none is near.

    >>> did_you_mean("bufer", ["buffer", "env"])
    ' Did you mean `buffer`?'
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean `{close[0]}`?" if close else ""
