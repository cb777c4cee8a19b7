"""A local hub with one repository. It supports the four requests with which huggingface_hub downloads."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

NAME, COMMIT = "someone/catch", "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def hub_server(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the files of a folder as `someone/catch`. Yield the address, and the requested paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            asked.append(self.path)
            path = self.path.partition("?")[0].removeprefix("/")
            if path == f"api/models/{NAME}/revision/main":
                self.answer(json.dumps({"id": NAME, "sha": COMMIT}).encode(), "application/json")
            elif path == f"api/models/{NAME}/tree/{COMMIT}":
                self.answer(
                    json.dumps([entry(file) for file in folder.iterdir()]).encode(), "application/json"
                )
            elif path.startswith(f"{NAME}/resolve/{COMMIT}/"):
                self.answer((folder / Path(path).name).read_bytes(), "application/octet-stream")
            else:
                is_known = path.startswith(f"api/models/{NAME}/")
                self.answer(b"", "text/plain", "RevisionNotFound" if is_known else "RepoNotFound")

        def answer(self, body: bytes, kind: str, error: str | None = None) -> None:
            self.send_response(200 if error is None else 404)
            headers = {"ETag": f'"{etag(body)}"', "X-Repo-Commit": COMMIT, "Content-Type": kind}
            for key, value in (headers if error is None else {"X-Error-Code": error}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def entry(file: Path) -> dict[str, object]:
    """Return a file's entry in the hub's listing."""
    body = file.read_bytes()
    return {"type": "file", "path": file.name, "size": len(body), "oid": etag(body)}


def etag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
