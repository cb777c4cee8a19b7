"""Errors that a user can repair: shown as one sentence, exit code 2, never a traceback."""

import argparse
import difflib
import errno
import math
import numbers
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import fields
from enum import EnumType
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

USER_ERROR_EXIT_CODE = 2
INSTALL = "Install Reverie with all it needs: pip install -c constraints.txt -e packages/heapwatch -e ."
_MOST_CHARACTERS = 200
_NO_MEMORY = ("annot allocate memory", "failed to map segment", "bad_alloc")
# VmSize is 742 MiB after the imports and the plan of a small run. An import that runs out of address space
# fails with an error of any kind, such as a SyntaxError, so a lower limit is refused before the first import.
_LEAST_ADDRESS_BYTES = 800 * 2**20
_MEANT = {"gpu": "cuda"}  # other words that people type


class UserError(ValueError):
    """What was asked, the limit by the name the user typed, and the repair, in one message."""


class ErrorOfRank(UserError):
    """What one of torchrun's processes has to say, and the first does not say too."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean `x`?' for the nearest known name, or '' when none is near.

    >>> did_you_mean("bufer", ["buffer", "env"])
    ' Did you mean `buffer`?'
    """
    names = list(known)
    if _MEANT.get(name) in names:
        return f" Did you mean `{_MEANT[name]}`?"
    close = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean `{close[0]}`?" if close else ""


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its class if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


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
        """Write; letters that the output's encoding lacks are spelled out, as on stderr."""
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        return self._try(self._file.write, text.encode(encoding, "backslashreplace").decode(encoding))

    def flush(self) -> None:
        """Write what waits."""
        self._try(self._file.flush)

    def _try(self, action: Callable[..., Any], *args: Any) -> Any:
        try:
            return action(*args)
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


def require_range(
    section: str,
    settings: object,
    *names: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> None:
    """Refuse fields of the dataclass `settings` that are outside a range or not finite; None is in each.

    `section` is what the user types before the names, "" for settings that have none.
    """
    for name in names:
        value = getattr(settings, name)
        key = f"{section}.{name}" if section else name
        if value is None:
            continue
        if not issubclass(type(value), numbers.Real):  # also those of numpy
            raise UserError(f"{key} must be a number, got {value!r}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{key} must be a finite number, got {value}.")
        is_low = (ge is not None and value < ge) or (gt is not None and value <= gt)
        is_high = (le is not None and value > le) or (lt is not None and value >= lt)
        if is_low or is_high:
            raise UserError(f"{key} must be {_range_text(ge, gt, le, lt)}, got {value}.")


def take_choices(section: str, settings: Any) -> None:
    """Take text for the member that it names, in each field of a dataclass that is an `Enum`.

    Raises:
        UserError: If it names none.
    """
    for field in fields(settings):
        value, kind = getattr(settings, field.name), field.type
        if not isinstance(kind, EnumType) or isinstance(value, kind):
            continue
        names = kind.__members__
        if str(value) not in names:
            known = f"{', '.join(names)}.{did_you_mean(str(value), names)}"
            raise UserError(f"{section}.{field.name}={value} is none of {known}")
        setattr(settings, field.name, kind[str(value)])


def require_seed(seed: object) -> None:
    """Refuse what is no whole number in [0, 2**32)."""
    if not isinstance(seed, numbers.Integral) or not 0 <= int(seed) < 2**32:  # also those of numpy
        raise UserError(f"seed must be in [0, 2**32), got {seed!r}.")


def _range_text(ge: float | None, gt: float | None, le: float | None, lt: float | None) -> str:
    low, high = (gt if ge is None else ge), (lt if le is None else le)
    if low is None:
        return f"at most {le}" if lt is None else f"< {lt}"
    if high is None:
        return f"at least {ge}" if gt is None else f"> {gt}"
    return f"in {'[' if gt is None else '('}{low}, {high}{']' if lt is None else ')'}"


def require_address_space() -> None:
    """Refuse a limit of the address space (`ulimit -v`) that is too low for the imports to succeed."""
    limit = address_space_limit_bytes()
    if limit is not None and limit < _LEAST_ADDRESS_BYTES:
        found = f"ulimit -v must be at least {_LEAST_ADDRESS_BYTES // 1024:,} KiB (got {limit // 1024:,})"
        raise UserError(f"{found}, because libraries take that much. Raise it (SGE sets it by h_vmem).")


def address_space_error(error: BaseException) -> UserError | None:
    """Return the error to show if a limit of the address space (`ulimit -v`) made an allocation fail."""
    limit, text = address_space_limit_bytes(), str(error)
    # Below a limit, code in C that forgets to say that it got no memory ends as a SystemError.
    is_memory = isinstance(error, MemoryError | SystemError) or any(words in text for words in _NO_MEMORY)
    if limit is None or not is_memory:
        return None
    found = f"ulimit -v allows {limit // 1024:,} KiB of address space, and that is used up"
    return UserError(f"{found}. Raise it (SGE sets it by h_vmem), or make the run smaller.")


def address_space_limit_bytes() -> int | None:
    """Return the most address space, in bytes, that this process may map (`ulimit -v`), or `None`."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _long_name_error(error: BaseException) -> UserError | None:
    """Return the error to show if the name of a file is too long."""
    if not isinstance(error, OSError) or error.errno != errno.ENAMETOOLONG:
        return None
    return UserError(f"{error.filename}: {error.strerror}, of at most 255 bytes. Choose a shorter name.")


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a `UserError` inside, also of output that fails, into one line on stderr and exit code 2."""
    with open(os.devnull, "w") as nowhere:
        output = _Output(sys.stdout or nowhere)  # there is none if its descriptor was closed
        try:
            with redirect_stdout(cast(TextIO, output)):
                try:
                    yield
                except BaseException as error:
                    if refused := address_space_error(error) or _long_name_error(error):
                        raise refused from error
                    is_success = isinstance(error, SystemExit) and not error.code  # as after --help
                    with nullcontext() if is_success else suppress(UserError):  # the first error counts
                        output.flush()
                    raise
                output.flush()
        except UserError as error:
            # Before torchrun's processes have met, they all say the same.
            if os.environ.get("RANK", "0") == "0" or isinstance(error, ErrorOfRank):
                sys.stderr.write(f"error: {printable(' '.join(str(error).split()), None)}\n")
            raise SystemExit(USER_ERROR_EXIT_CODE) from None


def require_current_folder() -> None:
    """Exit with code 2 in a folder that is gone; torch's libraries would end the process with a riddle."""
    with exit_on_user_error():
        try:
            os.getcwd()
        except FileNotFoundError as error:
            raise UserError("the current folder is gone. Change to one that is there, as by cd ~.") from error


def require_posix() -> None:
    """Raise a `UserError` on Windows."""
    if sys.platform in ("win32", "cygwin"):
        raise UserError(
            f"Reverie runs on Linux and, with less, on macOS; this is Windows ({sys.platform}), without the "
            "signals and processes it is built on. Install it in WSL 2: wsl --install."
        )


class FlagParser(argparse.ArgumentParser):
    """argparse whose complaint is a `UserError` instead of usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has to say."""
        raise UserError(f"{message}; --help shows how to write the command.")
