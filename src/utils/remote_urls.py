"""URLs of remote folders: checks before a run starts, and safe logging without secrets."""

import os
import re
from pathlib import Path
from urllib.parse import quote

from .errors import UserError, did_you_mean, printable

URL_SEPARATOR = "://"
_SECRET_NAMES = ("SECRET", "TOKEN", "PASSWORD", "KEY")
# Masking shorter values, such as every "1", would make a message unreadable.
_SHORTEST_SECRET = 4
# File systems limit names to 255 bytes.
_MOST_BYTES = 255


def redact_url(url: str) -> str:
    """Return a URL without its credentials and query.

    >>> redact_url("sftp://me:word@host/runs?token=x")
    'sftp://host/runs'
    """
    return re.sub(r"(?s)(?<=://)[^/?]*@|\?.*", "", url)


def check_url(key: str, url: str) -> None:
    """Raise `UserError` if `url` is not a folder's URL or contains credentials. This does not connect."""
    protocol, separator, rest = url.partition(URL_SEPARATOR)
    if not separator:
        raise UserError(f"{key}={url} is not a URL. Write a folder as {key}=file://{Path(url).absolute()}.")
    if re.search(r"^[^/]*:[^/]*@|\?", rest):
        raise UserError(
            f"{key}={redact_url(url)} was given with credentials or a query, which would be written to "
            "config.yaml and logs. Set them in the environment (AWS_ACCESS_KEY_ID, ...) instead."
        )
    if not protocol or not rest.strip("/"):
        raise UserError(f"{key}={url} has no folder. Example: {key}=s3://bucket/runs.")
    if any(len(name.encode(errors="surrogatepass")) > _MOST_BYTES for name in rest.split("/")):
        raise UserError(f"{key}={url} has a name of more than {_MOST_BYTES} bytes. Choose shorter names.")


def require_protocol(key: str, url: str) -> None:
    """Raise `UserError` if fsspec does not support a URL's protocol or lacks its package.

    Importing fsspec takes 0.5 s.
    """
    import fsspec

    protocol, shown = url.partition(URL_SEPARATOR)[0], f"{key}={redact_url(url)}"
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        hint = did_you_mean(protocol, fsspec.available_protocols())
        known = "The most useful are s3, gs, abfs, sftp and file."
        raise UserError(f"{shown}: fsspec does not support {protocol}.{hint or f' {known}'}") from error
    except ImportError as error:
        raise UserError(f"{shown} needs a package that is missing: {error}.") from error


def describe_error(error: BaseException) -> str:
    """Return an error's type and message on one short line, without secrets.

    Secrets are the values of environment variables with names such as TOKEN, and the queries of (possibly
    signed) URLs.
    """
    text = " ".join(str(error).split())
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and any(word in name.upper() for word in _SECRET_NAMES):
            text = text.replace(value, "***").replace(quote(value, safe=""), "***")
    text = re.sub(r"(://[^\s?]*)\?[^\s\"']*", r"\1", text)
    return printable(f"{type(error).__name__}: {text}").rstrip(" .:")
