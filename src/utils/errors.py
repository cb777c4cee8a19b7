"""User errors. They are printed as one line without a traceback, and the exit code is 2."""

import argparse
import difflib
import errno
import importlib.util
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
from types import ModuleType
from typing import Any, NoReturn, TextIO, cast

USER_ERROR_EXIT_CODE = 2
INSTALL = "Install Reverie and its packages: pip install -c constraints.txt -e packages/heapwatch -e ."
_MOST_CHARACTERS = 200
_NO_MEMORY = ("annot allocate memory", "failed to map segment", "bad_alloc")
# VmSize is 742 MiB after the imports and the plan of a small run. An import that runs out of address space
# may raise any error, e.g. a SyntaxError, so a lower limit is refused before the first import.
_LEAST_ADDRESS_BYTES = 800 * 2**20
_SYNONYMS = {"gpu": "cuda"}
CODE_FAULTS = (Exception, SystemExit)
"""Exceptions of third-party code that must not end this process."""


class UserError(ValueError):
    """An error that the user can fix. The message gives the input, the limit and the fix."""


class ErrorOfRank(UserError):
    """A user error raised on one rank but not on rank 0."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean `x`?' for the closest known name, or '' without a close match.

    >>> did_you_mean("bufer", ["buffer", "env"])
    ' Did you mean `buffer`?'
    """
    names = list(known)
    if _SYNONYMS.get(name) in names:
        return f" Did you mean `{_SYNONYMS[name]}`?"
    close = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean `{close[0]}`?" if close else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def with_place(error: BaseException) -> str:
    """Return an error of user code with its location: 'FileNotFoundError: no level (world.py, line 12)'."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    # The message of a SyntaxError already contains its location.
    is_placed = frames and not isinstance(error, SyntaxError)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if is_placed else ""
    return f"{type(error).__name__}: {error}{place}"


def import_for(asked: str, module: str) -> ModuleType:
    """Import a module, installed or in the current folder.

    Raises:
        UserError: If this fails. The message begins with `asked`, the user's input.
    """
    if "" not in sys.path:
        # Installed modules take precedence over the current folder.
        sys.path.append("")
    try:
        return importlib.import_module(module)
    except CODE_FAULTS as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UserError(
                f"{asked}: the module {error.name} is neither installed nor in the current "
                f"folder. Install it, or start in the folder of {error.name}.py."
            ) from error
        raise UserError(f"{asked}: importing {module} failed with {with_place(error)}.") from error


def require_package(name: str, asked: str, otherwise: str = "") -> None:
    """Raise `UserError` if the setting `asked` needs a missing optional package. It is not imported."""
    if importlib.util.find_spec(name) is None:
        repair = f"Run `pip install -c constraints.txt -e '.[{name}]'`{otherwise}."
        raise UserError(f"{asked} requires the package {name}, which is not installed. {repair}")


class _Output:
    """Standard output that raises a `UserError` if writing fails, e.g. because a pipe is closed."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write `text`. As on stderr, characters that the output cannot encode are escaped."""
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        return self._try(self._file.write, text.encode(encoding, "backslashreplace").decode(encoding))

    def flush(self) -> None:
        """Flush buffered text."""
        self._try(self._file.flush)

    def _try(self, action: Callable[..., Any], *args: Any) -> Any:
        try:
            return action(*args)
        except OSError as error:
            # Python flushes again at exit. This must not fail a second time.
            with suppress(OSError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._file.fileno())
            raise UserError(f"the output cannot be written: {error.strerror}.") from error


def printable(text: str, most: int | None = _MOST_CHARACTERS) -> str:
    r"""Return the first `most` characters of a text, with a question mark for each unprintable one.

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
    """Raise `UserError` for fields of `settings` that are out of range or not finite. `None` is allowed.

    `settings` is a dataclass. `section` is the prefix of its fields on the command line, or "".
    """
    for name in names:
        value = getattr(settings, name)
        key = f"{section}.{name}" if section else name
        if value is None:
            continue
        # NumPy's numbers are also instances of `numbers.Real`.
        if not issubclass(type(value), numbers.Real):
            raise UserError(f"{key} must be a number, got {value!r}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{key} must be a finite number, got {value}.")
        is_low = (ge is not None and value < ge) or (gt is not None and value <= gt)
        is_high = (le is not None and value > le) or (lt is not None and value >= lt)
        if is_low or is_high:
            raise UserError(f"{key} must be {_range_text(ge, gt, le, lt)}, got {value}.")


def take_choices(section: str, settings: Any) -> None:
    """Convert text to the enum member of that name in each `Enum` field of a dataclass.

    Raises:
        UserError: If the enum has no such member.
    """
    for field in fields(settings):
        value, kind = getattr(settings, field.name), field.type
        if not isinstance(kind, EnumType) or isinstance(value, kind):
            continue
        names = kind.__members__
        if str(value) not in names:
            known = f"{', '.join(names)}.{did_you_mean(str(value), names)}"
            raise UserError(f"{section}.{field.name}={value} is not one of {known}")
        setattr(settings, field.name, kind[str(value)])


def require_seed(seed: object) -> None:
    """Require a Python or NumPy integer in [0, 2**32)."""
    if not isinstance(seed, numbers.Integral) or not 0 <= int(seed) < 2**32:
        raise UserError(f"seed must be in [0, 2**32), got {seed!r}.")


def _range_text(ge: float | None, gt: float | None, le: float | None, lt: float | None) -> str:
    low, high = (gt if ge is None else ge), (lt if le is None else le)
    if low is None:
        return f"at most {le}" if lt is None else f"< {lt}"
    if high is None:
        return f"at least {ge}" if gt is None else f"> {gt}"
    return f"in {'[' if gt is None else '('}{low}, {high}{']' if lt is None else ')'}"


def require_address_space() -> None:
    """Raise `UserError` if the address-space limit (`ulimit -v`) is too low for the imports."""
    limit = address_space_limit_bytes()
    if limit is not None and limit < _LEAST_ADDRESS_BYTES:
        found = f"ulimit -v must be at least {_LEAST_ADDRESS_BYTES // 1024:,} KiB (got {limit // 1024:,})"
        raise UserError(f"{found}, because libraries need that much. Raise it (SGE sets it with h_vmem).")


def address_space_error(error: BaseException) -> UserError | None:
    """Return a `UserError` if the address-space limit (`ulimit -v`) caused an error, otherwise `None`."""
    limit, text = address_space_limit_bytes(), str(error)
    # C code that fails to set an exception after a failed allocation causes a SystemError.
    is_memory = isinstance(error, MemoryError | SystemError) or any(words in text for words in _NO_MEMORY)
    if limit is None or not is_memory:
        return None
    found = f"the address space of {limit // 1024:,} KiB (ulimit -v) is exhausted"
    return UserError(f"{found}. Raise it (SGE sets it with h_vmem), or make the run smaller.")


def address_space_limit_bytes() -> int | None:
    """Return the address-space limit of this process (`ulimit -v`) in bytes, or `None` without a limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _long_name_error(error: BaseException) -> UserError | None:
    """Return a `UserError` if a file name was too long, otherwise `None`."""
    if not isinstance(error, OSError) or error.errno != errno.ENAMETOOLONG:
        return None
    return UserError(f"{error.filename}: {error.strerror} (at most 255 bytes). Choose a shorter name.")


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Print a `UserError` raised inside (including failed output) as one line on stderr, and exit with 2."""
    with open(os.devnull, "w") as nowhere:
        # `sys.stdout` is `None` if its descriptor was closed before the process started.
        output = _Output(sys.stdout or nowhere)
        try:
            with redirect_stdout(cast(TextIO, output)):
                try:
                    yield
                except BaseException as error:
                    if refused := address_space_error(error) or _long_name_error(error):
                        raise refused from error
                    # After a successful exit, e.g. of --help, an output error is reported. After any other
                    # error, only that first error is reported.
                    is_success = isinstance(error, SystemExit) and not error.code
                    with nullcontext() if is_success else suppress(UserError):
                        output.flush()
                    raise
                output.flush()
        except UserError as error:
            # Before torchrun's processes have connected, they all raise the same error.
            if os.environ.get("RANK", "0") == "0" or isinstance(error, ErrorOfRank):
                sys.stderr.write(f"error: {printable(' '.join(str(error).split()), None)}\n")
            raise SystemExit(USER_ERROR_EXIT_CODE) from None


def require_current_folder() -> None:
    """Exit with code 2 if the current folder was deleted, before torch's libraries fail cryptically."""
    with exit_on_user_error():
        try:
            os.getcwd()
        except FileNotFoundError as error:
            raise UserError("the current folder was deleted. Change to another one (cd ~).") from error


def require_posix() -> None:
    """Raise `UserError` on Windows."""
    if sys.platform in ("win32", "cygwin"):
        raise UserError(
            f"Reverie requires Linux or macOS (with fewer features), but this is Windows ({sys.platform}). "
            "Install Reverie in WSL 2: wsl --install."
        )


class FlagParser(argparse.ArgumentParser):
    """Argument parser that raises a `UserError` instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as a `UserError`."""
        raise UserError(f"{message}. Use --help for usage.")
