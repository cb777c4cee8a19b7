"""One remote folder: files by their relative names, moved in pieces."""

import math
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from fsspec.core import url_to_fs

from ...utils.durable_io import JSON_BYTES, open_regular
from ...utils.remote_urls import SIGN, shown

PIECE_BYTES = 2**23
"""Most of a file that is sent or received at once; a file of over 75 GB is sent in larger pieces."""

UNFINISHED = ".unfinished"
_MOST_PIECES = 9_000  # S3 takes 10,000
_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"))
"""They show a file only once it is whole, and have no folders: to make one might make a bucket."""

Answer = TypeVar("Answer")


class Remote:
    """A folder on a file system that fsspec knows; everything may raise whatever that file system raises.

    Args:
        url: Of the folder, which need not be there yet.
        name: Of a folder in it, if that is the one.

    Cost: memory of twice `PIECE_BYTES`, whatever the size of a file, beside what the package itself takes.
    """

    def __init__(self, url: str, name: str = "") -> None:
        self.shown = "/".join(part for part in (shown(url).rstrip("/"), name) if part)
        self._url, self._name = url, name
        self._has_folders = url.partition(SIGN)[0] not in _OBJECT_STORES

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system and the path of the folder in it; some ask the network when they are made."""
        # No caches: what others keep of this file system, or kept before the server changed, is not asked.
        system, path = url_to_fs(self._url, skip_instance_cache=True, use_listings_cache=False)
        return system, "/".join(part for part in (path.rstrip("/"), self._name) if part)

    @property
    def _system(self) -> Any:
        return self._opened[0]

    @property
    def _path(self) -> str:
        return self._opened[1]

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every regular file by name; none if there is no such folder."""
        try:
            found = self._system.find(self._path, detail=True)
        except FileNotFoundError:
            return {}
        start = f"{self._path}/"
        files = {p: info for p, info in found.items() if p.startswith(start) and info["type"] == "file"}
        return {path.removeprefix(start): int(info["size"] or 0) for path, info in files.items()}

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        return bool(self._system.exists(self._at(name)))

    def read(self, name: str) -> bytes:
        """Return what a small file holds, at most `JSON_BYTES`.

        Raises:
            FileNotFoundError: If there is no regular file of that name.
        """
        with self._open(name) as source:
            return source.read(JSON_BYTES)

    def put(self, local: Path, name: str) -> None:
        """Send a file; it has its name only once it is whole."""
        size = max(PIECE_BYTES, math.ceil(local.stat().st_size / _MOST_PIECES))
        target = self._at(name)
        unfinished = f"{target}{UNFINISHED}" if self._has_folders else target
        if self._has_folders:
            self._system.makedirs(target.rpartition("/")[0], exist_ok=True)
        with open_regular(local) as source, self._system.open(unfinished, "wb", block_size=size) as sink:
            shutil.copyfileobj(source, sink, PIECE_BYTES)
        if self._has_folders:
            self._system.mv(unfinished, target)

    def get(self, name: str, local: Path, nbytes: int) -> None:
        """Receive a file of that many bytes; of a longer one the rest is left.

        Raises:
            FileNotFoundError: If there is no regular file of that name.
        """
        with self._open(name) as source, local.open("wb") as sink:
            while nbytes > 0 and (piece := source.read(min(nbytes, PIECE_BYTES))):
                nbytes -= sink.write(piece)

    def delete(self, name: str) -> None:
        """Delete a file, and its folder if that is empty now."""
        self._system.rm_file(self._at(name))
        if self._has_folders:
            with suppress(OSError):
                self._system.rmdir(self._at(name).rpartition("/")[0])

    def _open(self, name: str) -> Any:
        """Open a file for reading; in folders there may be pipes, which would be waited for."""
        if self._has_folders and not self._system.isfile(self._at(name)):
            raise FileNotFoundError(name)
        return self._system.open(self._at(name), "rb", block_size=PIECE_BYTES)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"


def answer_within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """Return what `ask` returns, or raise what it raises; it runs in a thread that nobody waits for longer.

    Raises:
        TimeoutError: If there is no answer in time.
    """
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="ask the mirror", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answers[0]
