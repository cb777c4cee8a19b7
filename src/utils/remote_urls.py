"""URLs of remote folders: check them before a run starts, and keep secrets out of logs."""

import os
import re
from pathlib import Path
from urllib.parse import quote

import fsspec
from fsspec.registry import known_implementations

from .errors import UserError, did_you_mean, printable

URL_SEPARATOR = "://"
_SECRET_NAMES = ("SECRET", "TOKEN", "PASSWORD", "KEY")
_SHORTEST_SECRET = 4  # characters: to blot out every "1" leaves no readable sentence


def redact_url(url: str) -> str:
    """Return a URL without its user and its query.

    >>> redact_url("sftp://me:word@host/runs?token=x")
    'sftp://host/runs'
    """
    protocol, _, rest = url.partition(URL_SEPARATOR)
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{protocol}{URL_SEPARATOR}{place.rpartition('@')[2]}{slash}{path}"


def check_url(key: str, url: str) -> None:
    """Refuse what is no URL, or holds credentials, without any import or connection."""
    _, separator, rest = url.partition(URL_SEPARATOR)
    if not separator:
        raise UserError(f"{key}={url} is no URL. Write a folder as {key}=file://{Path(url).absolute()}.")
    user = rest.partition("/")[0].rpartition("@")[0]
    if ":" in user or "?" in rest:
        raise UserError(
            f"{key}={redact_url(url)} was given with credentials or a query, which would end in config.yaml "
            "and logs. Leave them out of the URL and set them in the environment (AWS_ACCESS_KEY_ID, ...)."
        )
    if url.startswith(URL_SEPARATOR) or not rest.strip("/"):
        raise UserError(f"{key}={url} names no folder. Write it as in {key}=s3://bucket/runs.")


def require_protocol(key: str, url: str) -> None:
    """Refuse a protocol that fsspec does not know, or whose package is missing; it is imported in 0.5 s."""
    protocol = url.partition(URL_SEPARATOR)[0]
    known = fsspec.available_protocols()
    if protocol not in known:
        hint = did_you_mean(protocol, known) or " The most useful are s3, gs, abfs, sftp and file."
        raise UserError(f"{key}={redact_url(url)}: fsspec knows no protocol {protocol}.{hint}")
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        package = known_implementations[protocol]["class"].partition(".")[0]
        named = {"s3fs": "reverie[s3]", "fsspec": f"fsspec[{protocol}]"}.get(package, package)
        raise UserError(
            f"{key}={redact_url(url)} needs a package that is not installed. Run `pip install '{named}'`."
        ) from error


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
