"""A real S3-compatible server in this process that can be stopped and restarted with its contents."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

BUCKET = "bucket"
S3_MIRROR = f"s3://{BUCKET}/runs"
MARKER = "Zq7markerOfTheTests"
"""Part of every secret in the environment."""


def environment(url: str) -> dict[str, str]:
    """Return a user's settings for an S3-compatible server, without retries, so that errors are immediate."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": f"{MARKER}Id",
        "AWS_SECRET_ACCESS_KEY": f"{MARKER}Secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }


class S3Server:
    """The server, and a client for tests."""

    def __init__(self) -> None:
        self._port, self._is_up = 0, False
        self.start()
        self.client().mkdir(BUCKET)

    def start(self) -> None:
        """Start the server unless it is running. After a stop, it uses the same port."""
        if self._is_up:
            return
        # Most tests, including those on GPUs, do not need it.
        from moto.server import ThreadedMotoServer

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
        """Return all files in the mirror of a run, by name."""
        start, client = f"{S3_MIRROR.removeprefix('s3://')}/{run}/", self.client()
        return {path.removeprefix(start): client.cat_file(path) for path in client.find(start)}


@contextmanager
def server_that_never_answers() -> Iterator[str]:
    """Yield the URL of a server that accepts connections but never reads or answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
