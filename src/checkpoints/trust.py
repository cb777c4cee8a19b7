"""Trust in the classes of the user's own code that a run names: signatures of the runs trained here."""

import hmac
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..config.dreamer import DreamerTrainConfig
from ..config.schema import TrainConfig
from ..utils.components import own_classes
from ..utils.durable_io import read_regular, replace_file
from ..utils.errors import UserError

_SIGNATURES = ".signatures"


def sign_own_classes(config: TrainConfig, folder: Path) -> None:
    """Sign a run's classes of the user's own code, so that they need no trust later.

    A signature covers a class and the inode of the folder, so it is not valid in a copy. The key is in the
    user's state folder. Without that folder, the run needs `trust` later.
    """
    if isinstance(config, DreamerTrainConfig) and (classes := own_classes(config)):
        with suppress(OSError, RuntimeError):
            replace_file(folder / _SIGNATURES, _signatures(classes, folder))


def _signatures(classes: Iterable[str], folder: Path) -> list[bytes]:
    """Return lines that only this user can make. Raise OSError or RuntimeError without a key."""
    key = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "reverie" / "key"
    if not key.exists():
        key.parent.mkdir(parents=True, exist_ok=True)
        begun = key.with_name(secrets.token_hex())
        with open(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        # Another process may have created the key.
        with suppress(FileExistsError):
            os.link(begun, key)
        begun.unlink()
    secret, inode = read_regular(key), folder.stat().st_ino
    return [
        hmac.digest(secret, f"{inode} {each}".encode(), "sha256").hex().encode() + b"\n" for each in classes
    ]


def require_trust(classes: Iterable[str], folder: Path, asked: str) -> None:
    """Raise `UserError` for classes that this user has not trained here. Their modules are not imported."""
    signed, foreign = set[bytes](), []
    with suppress(OSError, RuntimeError, UserError):
        signed.update(read_regular(folder / _SIGNATURES).splitlines(keepends=True))
    for each in classes:
        with suppress(OSError, RuntimeError):
            if signed.issuperset(_signatures([each], folder)):
                continue
        foreign.append(each)
    if foreign:
        modules = ", ".join(dict.fromkeys(each.partition("=")[2].partition(":")[0] for each in foreign))
        raise UserError(
            f"{asked} was copied or downloaded, and loading it would import {modules}, because it sets "
            f"{', '.join(foreign)}. Set trust=true if you trust this code."
        )
