"""Read the file of a CUDA memory snapshot as plain data, and trust nothing in it.

A pickle is a program. A snapshot needs only the part of its language that builds dicts, lists, tuples,
strings and numbers. Without a name to import there is nothing to call: an unpickler that refuses every name
runs nothing. `torch.cuda._memory_viz._read` is an unrestricted `pickle.load` and is not used.

A few bytes can still ask for many GB, as the number of a memo slot does: the process may take no more than
`MAX_MEMORY_BYTES` while it reads. A file made for it can still waste time, or crash the analyser by tuples
nested deeper than Python can hash.
"""

import errno
import gc
import io
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

from ...utils.durable_io import read_regular
from ...utils.errors import UserError, printable

MAX_FILE_BYTES = 128 * 2**20
MAX_MEMORY_BYTES = 4 * 2**30


class PlainUnpickler(pickle.Unpickler):
    """Builds plain data only: it knows no class, no function and no object outside the file."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse to import `module_name`."""
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, and a snapshot is plain data")

    def persistent_load(self, pid: object, /) -> NoReturn:
        """Refuse a reference to something outside the file."""
        raise pickle.UnpicklingError("it refers to an object outside itself, and a snapshot is plain data")


def load(path: Path) -> object:
    """Return the data of a snapshot file: dicts, lists, tuples, sets, strings, bytes, numbers and None.

    Parts may be shared, and may contain themselves.

    Cost: 0.3 s and 35 MB for each 100,000 blocks.

    Args:
        path: A file as `torch.cuda.memory._dump_snapshot` writes it.

    Raises:
        UserError: If the file cannot be read, is over a limit, is damaged, or is anything but plain data.
    """
    try:
        data = read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        repair = " Record it without a history." if error.errno == errno.EFBIG else ""
        raise UserError(f"{path} cannot be read: {error.strerror}.{repair}") from error
    try:
        with _bounded():
            return PlainUnpickler(io.BytesIO(data)).load()
    except MemoryError as error:
        limit = f"{MAX_MEMORY_BYTES:,} bytes of memory"
        raise UserError(f"{path} takes more than {limit} to read, as no snapshot does. Remove it.") from error
    except Exception as error:  # a damaged pickle may raise nearly any
        reason = printable(str(error)).rstrip(".") or type(error).__name__
        raise UserError(
            f"{path} is damaged or no snapshot: {reason}. Remove it, or save it again."
        ) from error


@contextmanager
def _bounded() -> Iterator[None]:
    """Let the process map at most `MAX_MEMORY_BYTES` more, where the system can bound it.

    The cycle collector pauses: among objects that all stay, it would double the time.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [psutil.Process().memory_info().vms + MAX_MEMORY_BYTES, soft, hard]
    was_on = gc.isenabled()
    gc.disable()
    try:
        with suppress(OSError, ValueError):  # macOS may refuse
            bound = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
            resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if was_on:
            gc.enable()
