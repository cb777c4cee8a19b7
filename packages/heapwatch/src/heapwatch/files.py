"""Open files that may be untrusted."""

import errno
import io
import os
import stat
from pathlib import Path

_KINDS = {"p": "a pipe", "d": "a folder", "c": "a device", "b": "a device", "s": "a socket"}


def open_regular(path: Path, most_bytes: int | None = None) -> io.BufferedReader:
    """Open a regular file of at most `most_bytes` without waiting for a pipe or following a link.

    Its parent folders may be links.

    Raises:
        OSError: If the file is not regular or too large. `strerror` describes the file.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            error.strerror = "it is a link, not a regular file"
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.filemode(status.st_mode)[0], "of an unknown kind")
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
        if most_bytes is not None and status.st_size > most_bytes:
            reason = f"it has {status.st_size:,} bytes, over the limit of {most_bytes:,}"
            raise OSError(errno.EFBIG, reason, str(path))
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise
