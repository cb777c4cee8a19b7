"""Opening the files of a run folder, which may come from a stranger: what stands there is looked at first.

A pipe would be waited on, a device has no end, and a link leads to a file that was never meant.
"""

import errno
import io
import os
import stat
from pathlib import Path

_KINDS = {"p": "a pipe", "d": "a folder", "c": "a device", "b": "a device", "s": "a socket"}


def open_own(path: Path, most_bytes: int | None = None) -> io.BufferedReader:
    """Open a regular file for reading; nothing is waited for, and no link is followed.

    Args:
        path: The file; folders on the way to it may be links.
        most_bytes: Size over which it is refused; None for any size.

    Raises:
        OSError: If it is no regular file, too large, or cannot be read; `strerror` says which.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "it is a link, not a file of its own"
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.filemode(status.st_mode)[0], "of an unknown kind")
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
        if most_bytes is not None and status.st_size > most_bytes:
            reason = f"it has {status.st_size:,} bytes, and at most {most_bytes:,} are read"
            raise OSError(errno.EFBIG, reason, str(path))
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def read_own(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: As `open_own`.
    """
    with open_own(path, most_bytes) as file:
        return file.read(most_bytes)
