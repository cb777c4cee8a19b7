"""URLs of remote folders: check them before a run starts, and keep secrets out of logs."""

import os
import re
from pathlib import Path
from urllib.parse import quote

from .errors import UserError, did_you_mean, printable

URL_SEPARATOR = "://"
_SECRET_NAMES = ("SECRET", "TOKEN", "PASSWORD", "KEY")
_SHORTEST_SECRET = 4  # characters: to blot out every "1" leaves no readable sentence
_MOST_BYTES = 255  # of a name in a file system


def redact_url(url: str) -> str:
    """Return a URL without its user and its query.

    >>> redact_url("sftp://me:word@host/runs?token=x")
    'sftp://host/runs'
    """
    return re.sub(r"(?s)(?<=://)[^/?]*@|\?.*", "", url)


def check_url(key: str, url: str) -> None:
    """Refuse a text that is not a URL of a folder, or contains credentials, without any connection."""
    protocol, separator, rest = url.partition(URL_SEPARATOR)
    if not separator:
        raise UserError(f"{key}={url} is not a URL. Write a folder as {key}=file://{Path(url).absolute()}.")
    if re.search(r"^[^/]*:[^/]*@|\?", rest):
        raise UserError(
            f"{key}={redact_url(url)} was given with credentials or a query, which would end in config.yaml "
            "and logs. Leave them out of the URL and set them in the environment (AWS_ACCESS_KEY_ID, ...)."
        )
    if not protocol or not rest.strip("/"):
        raise UserError(f"{key}={url} names no folder. Write it as in {key}=s3://bucket/runs.")
    if any(len(name.encode(errors="surrogatepass")) > _MOST_BYTES for name in rest.split("/")):
        raise UserError(f"{key}={url} has a name of more than {_MOST_BYTES} bytes. Choose shorter names.")


def require_protocol(key: str, url: str) -> None:
    """Refuse a protocol that fsspec does not know, or whose package is missing; it is imported in 0.5 s."""
    import fsspec

    protocol, shown = url.partition(URL_SEPARATOR)[0], f"{key}={redact_url(url)}"
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        hint = did_you_mean(protocol, fsspec.available_protocols())
        known = "The most useful are s3, gs, abfs, sftp and file."
        raise UserError(f"{shown}: fsspec knows no protocol {protocol}.{hint or f' {known}'}") from error
    except ImportError as error:
        raise UserError(f"{shown} needs a package that is missing: {error}.") from error


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error on one short line, without secrets.

    Those are the values of environment variables so named, and the queries of URLs, which may be signed.
    """
    text = " ".join(str(error).split())
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and any(word in name.upper() for word in _SECRET_NAMES):
            text = text.replace(value, "***").replace(quote(value, safe=""), "***")
    text = re.sub(r"(://[^\s?]*)\?[^\s\"']*", r"\1", text)
    return printable(f"{type(error).__name__}: {text}").rstrip(" .:")
