"""The web server of `reverie-play`. The page requests each step, so the server is idle without a viewer."""

import asyncio
import base64
import contextlib
import json
import re
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from aiohttp import WSMsgType, web

from reverie.envs import EnvironmentCrashed
from reverie.utils.errors import UserError, printable
from reverie.utils.video import encode_image, save_video, upscale

from .session import LONGEST_DREAM, DreamSession, Frame

# An Atari agent step has 4 frames at 60 Hz.
FPS = 15
SEEDS = 2**32
_LARGEST_MESSAGE_BYTES = 1024
# A lost connection is detected within two heartbeats.
_HEARTBEAT_SECONDS = 20.0
_CLOSE_SECONDS = 1.0
_GIF_HEIGHT_PIXELS = 256
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# An SSH tunnel may use another port.
_LOCAL_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)

Result = TypeVar("Result")
Message = dict[str, Any]


class PlayServer:
    """Connects a session to one web page at a time. A newer page replaces the current one.

    A separate thread answers messages one at a time, with a frame or `{"error": ...}`.

    Args:
        session: The session. Only the separate thread uses it, from its start to its end.
        facts: Information about the run and the environment for the page, including `actions`, `keys` and
            `seed`.

    Attributes:
        token: Secret that every request must include as `?token=`, or empty if only this machine has access.
    """

    def __init__(self, session: DreamSession, facts: Message) -> None:
        self.token = ""
        self._session, self._facts = session, facts
        self._actions: int = len(facts["actions"])
        self._page = Path(__file__).with_name("page.html").read_text("utf-8")
        self._thread = ThreadPoolExecutor(1, "play")
        self._viewer: web.WebSocketResponse | None = None

    async def serve(self, host: str, port: int, announce: Callable[[int], None]) -> None:
        """Start the game, serve pages until cancelled, and close the session.

        `announce` is called with the open port. Port 0 selects a free one. Listening beyond the loopback
        interface sets `token`.

        Raises:
            UserError: If the game cannot start, or the port cannot be opened.
            EnvironmentCrashed: If the environment fails too often at its start.
        """
        self.token = "" if host in _LOOPBACK else secrets.token_urlsafe(16)
        app = web.Application(middlewares=[self._guard])
        app.add_routes([web.get("/", self._root), web.get("/socket", self._socket)])
        app.add_routes([web.get("/dream.gif", self._gif)])
        app.on_shutdown.append(self._dismiss)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_SECONDS)
        await runner.setup()
        try:
            # The renderer of an environment may belong to the thread that created it.
            await self._run(lambda: self._session.restart(self._facts["seed"]))
            try:
                await web.TCPSite(runner, host, port).start()
            except (OSError, UnicodeError) as error:
                # UnicodeError is raised for invalid host names. asyncio puts the address before the reason.
                reason = str(getattr(error, "strerror", None) or error).rpartition("): ")[2]
                repair = "Choose another host or port (port=0: any free one)."
                raise UserError(f"host={host} port={port} cannot be opened: {reason}. {repair}") from error
            announce(runner.addresses[0][1])
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
            await self._run(self._session.close)
            await asyncio.to_thread(self._thread.shutdown)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Require either the token or a loopback host name.

        Otherwise a foreign page could gain this server's origin through DNS rebinding.
        """
        if self.token:
            given = request.query.get("token", "").encode(errors="replace")
            if not secrets.compare_digest(given, self.token.encode()):
                raise web.HTTPForbidden(text="Open the address that reverie-play printed, with its ?token=.")
        elif not _LOCAL_HOST.fullmatch(request.host):
            raise web.HTTPForbidden(text="Open this page as localhost or 127.0.0.1.")
        return await handler(request)

    async def _root(self, _: web.Request) -> web.Response:
        return web.Response(text=self._page, content_type="text/html", headers={"Cache-Control": "no-store"})

    async def _gif(self, request: web.Request) -> web.Response:
        _require_own_page(request)
        body = await self._run(self._encode_gif)
        headers = {"Content-Disposition": 'attachment; filename="dream.gif"', "Cache-Control": "no-store"}
        return web.Response(body=body, content_type="image/gif", headers=headers)

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one page until it disconnects or another page replaces it."""
        _require_own_page(request)
        socket = web.WebSocketResponse(
            heartbeat=_HEARTBEAT_SECONDS, max_msg_size=_LARGEST_MESSAGE_BYTES, timeout=_CLOSE_SECONDS
        )
        await socket.prepare(request)
        before, self._viewer = self._viewer, socket
        if before is not None:
            with contextlib.suppress(ConnectionError):
                await before.send_json({"error": "Another page has taken over; reload this one to continue."})
            await before.close()
        try:
            facts = self._facts | {"fps": FPS, "horizon": self._session.horizon}
            # The page may disconnect before it receives the answer.
            with contextlib.suppress(ConnectionError):
                await socket.send_json(facts | {"longest_dream": LONGEST_DREAM, "seeds": SEEDS})
                await socket.send_json(await self._answer('{"do": "dream"}'))
                async for message in socket:
                    text = message.data if message.type is WSMsgType.TEXT else ""
                    await socket.send_json(await self._answer(text))
        finally:
            if self._viewer is socket:
                self._viewer = None
        return socket

    async def _answer(self, text: str) -> Message:
        """Return a frame, or an error that the message or the environment caused."""
        try:
            return _as_message(await self._run(self._request(text)))
        except (UserError, EnvironmentCrashed) as error:
            return {"error": str(error).partition("\n")[0]}

    def _request(self, text: str) -> Callable[[], Frame]:
        """Return the session's method that a message requests.

        Raises:
            UserError: If the request is unknown or invalid.
        """
        session = self._session
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        match message:
            case {"do": "step", "action": None}:
                return lambda: session.step(None)
            case {"do": "step", "action": int(action)} if _is_in(action, 0, self._actions - 1):
                return lambda: session.step(action)
            case {"do": "horizon", "to": int(steps)} if _is_in(steps, 1, LONGEST_DREAM):
                return lambda: self._set_horizon(steps)
            case {"do": "seed", "to": int(seed)} if _is_in(seed, 0, SEEDS - 1):
                return lambda: session.restart(seed)
            case {"do": "dream"}:
                return session.begin_dream
            case {"do": "back"}:
                return session.back
            case {"do": "skip"}:
                return session.skip
            case {"do": "new"}:
                return session.new_game
        raise UserError(
            f"Invalid request: {printable(text) or 'no text'}. Actions are 0 to "
            f"{self._actions - 1} or null, horizons 1 to {LONGEST_DREAM:,}, seeds 0 to {SEEDS - 1:,}."
        )

    def _set_horizon(self, steps: int) -> Frame:
        self._session.horizon = steps
        return self._session.begin_dream()

    def _encode_gif(self) -> bytes:
        pictures = self._session.frames()
        scale = max(1, _GIF_HEIGHT_PIXELS // pictures.shape[1])
        with TemporaryDirectory() as folder:
            path = Path(folder, "dream.gif")
            save_video(path, (upscale(each, scale) for each in pictures), FPS)
            return path.read_bytes()

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _dismiss(self, _: web.Application) -> None:
        if self._viewer is not None:
            await self._viewer.close(message=b"the command has ended")


def _require_own_page(request: web.Request) -> None:
    """Reject pages from other sites, using headers that pages cannot forge.

    A download from the same origin does not have an Origin header, only Referer or Sec-Fetch-Site.
    """
    sender = request.headers.get("Origin") or request.headers.get("Referer", "")
    is_own = sender.split("/")[2:3] == [request.host]
    if not is_own and (sender or request.headers.get("Sec-Fetch-Site") != "same-origin"):
        raise web.HTTPForbidden(text="Only the page at this address can send requests.")


def _is_in(number: int, low: int, high: int) -> bool:
    # `True` is also an int.
    return low <= number <= high and not isinstance(number, bool)


def _as_message(frame: Frame) -> Message:
    shown = {each.name: getattr(frame, each.name) for each in fields(frame)}
    picture = base64.b64encode(encode_image(shown.pop("pictures"))).decode("ascii")
    # JSON has no NaN and no infinities. The page shows a dash for null.
    numbers = json.loads(json.dumps(shown), parse_constant=lambda _: None)
    return numbers | {"picture": f"data:image/png;base64,{picture}"}
