"""URLs of remote folders: checked before a run starts, and shown without anything that opens a door."""

import os
import re
from pathlib import Path
from urllib.parse import quote

import fsspec
from fsspec.registry import known_implementations

from .errors import UserError, did_you_mean, printable

SIGN = "://"
_SECRET_NAMES = ("SECRET", "TOKEN", "PASSWORD", "KEY")
_SHORTEST_SECRET = 4  # characters; to blot out every "1" would leave no sentence


def shown(url: str) -> str:
    """Return a URL without its user and its query.

    >>> shown("sftp://me:word@host/runs?token=x")
    'sftp://host/runs'
    """
    protocol, _, rest = url.partition(SIGN)
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{protocol}{SIGN}{place.rpartition('@')[2]}{slash}{path}"


def check_url(key: str, url: str) -> None:
    """Check the form of a URL; nothing is imported and nobody is asked.

    Raises:
        UserError: If it is none, or holds credentials.
    """
    protocol, sign, rest = url.partition(SIGN)
    if not sign:
        raise UserError(f"{key}={url} is no URL. Write a folder as {key}=file://{Path(url).absolute()}.")
    user, _, _ = rest.partition("/")[0].rpartition("@")
    if ":" in user or "?" in rest:
        raise UserError(
            f"{key}={shown(url)} was given with credentials or a query, which would end in config.yaml and "
            "logs. Leave them out of the URL and set them in the environment (AWS_ACCESS_KEY_ID, ...)."
        )
    if not protocol or not rest.strip("/"):
        raise UserError(f"{key}={url} names no folder. Write it as in {key}=s3://bucket/runs.")


def require_protocol(key: str, url: str) -> None:
    """Check that fsspec knows the protocol of a URL, and that the package behind it is there.

    Raises:
        UserError: Otherwise.

    Cost: imports the package; s3fs takes 0.5 s.
    """
    protocol = url.partition(SIGN)[0]
    known = fsspec.available_protocols()
    if protocol not in known:
        hint = did_you_mean(protocol, known) or " Those of most use are s3, gs, abfs, sftp and file."
        raise UserError(f"{key}={shown(url)}: fsspec knows no protocol {protocol}.{hint}")
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        package = known_implementations[protocol]["class"].partition(".")[0]
        named = {"s3fs": "reverie[s3]", "fsspec": f"fsspec[{protocol}]"}.get(package, package)
        raise UserError(
            f"{key}={shown(url)} needs a package that is not installed here. Run `pip install '{named}'`."
        ) from error


def reason_of(error: BaseException) -> str:
    """Return the type and the words of an error on one short line, without secrets.

    The values of environment variables that are called a key, secret, token or password are blotted out, and
    the queries of URLs, which may be signed.
    """
    text = " ".join(str(error).split())
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and any(word in name.upper() for word in _SECRET_NAMES):
            for form in (value, quote(value, safe="")):
                text = text.replace(form, "***")
    text = re.sub(r"(://[^\s?]*)\?[^\s\"']*", r"\1", text)
    return printable(f"{type(error).__name__}: {text}").rstrip(" .:")
