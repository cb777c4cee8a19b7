"""A real S3-compatible server in this process, which can be stopped, and started again with what it holds."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

BUCKET = "bucket"
S3_MIRROR = f"s3://{BUCKET}/runs"
MARKER = "Zq7markerOfTheTests"
"""Stands in every secret of the environment."""


def environment(url: str) -> dict[str, str]:
    """What a user sets for an S3-compatible server; a single try, so that a refusal is told at once."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": f"{MARKER}Id",
        "AWS_SECRET_ACCESS_KEY": f"{MARKER}Secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }


class S3Server:
    """The server, and a client of it for tests."""

    def __init__(self) -> None:
        self._port, self._is_up = 0, False
        self.start()
        self.client().mkdir(BUCKET)

    def start(self) -> None:
        """Start it unless it is up, after a stop at the same port."""
        if self._is_up:
            return
        from moto.server import ThreadedMotoServer  # most tests, those of a GPU too, do without it

        self._server = ThreadedMotoServer(port=self._port, verbose=False)
        self._server.start()
        self._port, self._is_up = self._server.get_host_and_port()[1], True

    def stop(self) -> None:
        self._server.stop()
        self._is_up = False

    def environment(self) -> dict[str, str]:
        return environment(f"http://127.0.0.1:{self._port}")

    def client(self) -> Any:
        return fsspec.filesystem(
            "s3",
            key="test",
            secret="test",
            endpoint_url=f"http://127.0.0.1:{self._port}",
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    def files(self, run: str) -> dict[str, bytes]:
        """All files of the copy of a run, by their names in it."""
        start, client = f"{S3_MIRROR.removeprefix('s3://')}/{run}/", self.client()
        return {path.removeprefix(start): client.cat_file(path) for path in client.find(start)}


@contextmanager
def server_that_never_answers() -> Iterator[str]:
    """A server that takes connections, reads nothing and says nothing; gives its URL."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
