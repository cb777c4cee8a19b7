"""The page of `reverie-play`: it asks for each step, so nothing runs while nobody looks."""

import asyncio
import base64
import contextlib
import json
import re
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from ipaddress import IPv6Address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from aiohttp import WSMsgType, web

from ..envs import EnvironmentCrashed
from ..utils.errors import UserError, printable
from ..utils.video import encode_image, save_video, upscale
from .session import LONGEST_DREAM, DreamSession, Frame

FPS = 15  # an Atari agent step is 4 frames of 60 Hz
SEEDS = 2**32
_LARGEST_MESSAGE = 1024  # bytes
_HEARTBEAT_SECONDS = 20.0  # a connection that is lost is noticed within two
_CLOSE_SECONDS = 1.0
_GIF_PIXELS = 256  # height of one picture
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_AUTHORITY = r"(?:\[(?P<ipv6>[\da-f:.]+)\]|(?P<name>[\w.~-]+))(?::(?P<port>\d{0,5}))?"
_HOST = re.compile(_AUTHORITY, re.ASCII | re.IGNORECASE)
_ORIGIN = re.compile(rf"[a-z][a-z\d+.-]*://{_AUTHORITY}", re.ASCII | re.IGNORECASE)

Result = TypeVar("Result")
Message = dict[str, Any]


class PlayServer:
    """Shows a session to one page; a newer page takes it over.

    Every message of the page is answered by one: a frame, or `{"error": ...}`. The session works in a thread
    of its own, one request after the other.

    Args:
        session: The session, restarted.
        facts: What the page shows of run and environment, and needs to choose actions: `actions`, `keys`.

    Attributes:
        token: Secret that every request must carry as `?token=`; empty while only this machine is answered.
    """

    def __init__(self, session: DreamSession, facts: Message) -> None:
        self.token = ""
        self._session, self._facts = session, facts
        self._actions: int = len(facts["actions"])
        self._page = Path(__file__).with_name("page.html").read_text("utf-8")
        self._thread = ThreadPoolExecutor(1, "play")
        self._viewer: web.WebSocketResponse | None = None

    async def serve(self, host: str, port: int, announce: Callable[[int], None]) -> None:
        """Answer pages until it is cancelled; `announce` gets the port once it is open, for 0 a free one.

        Listening beyond loopback sets `token`.

        Raises:
            UserError: If the port cannot be opened.
        """
        self.token = "" if host in _LOOPBACK else secrets.token_urlsafe(16)
        app = web.Application(middlewares=[self._guard])
        app.add_routes([web.get("/", self._root), web.get("/socket", self._socket)])
        app.add_routes([web.get("/dream.gif", self._gif)])
        app.on_shutdown.append(self._dismiss)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_SECONDS)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, host, port).start()
            except (OSError, UnicodeError) as error:  # UnicodeError: no host can have this name
                reason = getattr(error, "strerror", None) or error
                raise UserError(
                    f"port={port} of host={host} cannot be opened: {reason}. "
                    "Choose another; port=0 takes a free one."
                ) from error
            announce(runner.addresses[0][1])
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
            await asyncio.to_thread(self._thread.shutdown)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Require well-formed headers, and the token or the name of this machine.

        Without the token, a foreign page whose own name leads to this machine would be of the same origin.
        """
        origin = request.headers.get("Origin", "null")
        host = _host_of(_HOST.fullmatch(request.host))
        if host is None or (origin != "null" and _host_of(_ORIGIN.fullmatch(origin)) is None):
            raise web.HTTPBadRequest(text="The Host or Origin header is malformed.")
        if self.token:
            given = request.query.get("token", "").encode(errors="replace")
            if not secrets.compare_digest(given, self.token.encode()):
                raise web.HTTPForbidden(text="Open the address that reverie-play printed, with its ?token=.")
        elif host not in _LOOPBACK:
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
        """Play with one page, until it leaves or another one comes."""
        _require_own_page(request)
        socket = web.WebSocketResponse(
            heartbeat=_HEARTBEAT_SECONDS, max_msg_size=_LARGEST_MESSAGE, timeout=_CLOSE_SECONDS
        )
        await socket.prepare(request)
        before, self._viewer = self._viewer, socket
        if before is not None:
            with contextlib.suppress(ConnectionError):
                await before.send_json({"error": "Another page has taken over; reload this one to continue."})
            await before.close()
        try:
            facts = self._facts | {"fps": FPS, "horizon": self._session.horizon}
            with contextlib.suppress(ConnectionError):  # the page may leave while it is answered
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
        """Return a frame, or what is wrong with the message or the environment."""
        try:
            return _as_message(await self._run(self._request(text)))
        except (UserError, EnvironmentCrashed) as error:
            return {"error": str(error).partition("\n")[0]}

    def _request(self, text: str) -> Callable[[], Frame]:
        """Return what a message asks for.

        Raises:
            UserError: If it asks for nothing that there is.
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
            f"This was not understood: {printable(text) or 'no text'}. Steps take action 0 to "
            f"{self._actions - 1} or null, the horizon is 1 to {LONGEST_DREAM:,}, a seed 0 to {SEEDS - 1:,}."
        )

    def _set_horizon(self, steps: int) -> Frame:
        self._session.horizon = steps
        return self._session.begin_dream()

    def _encode_gif(self) -> bytes:
        pictures = self._session.frames()
        scale = max(1, _GIF_PIXELS // pictures.shape[1])
        with TemporaryDirectory() as folder:
            path = Path(folder, "dream.gif")
            save_video(path, (upscale(each, scale) for each in pictures), FPS)
            return path.read_bytes()

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _dismiss(self, _: web.Application) -> None:
        if self._viewer is not None:
            await self._viewer.close(message=b"the command has ended")


def _host_of(match: re.Match[str] | None) -> str | None:
    """Return the host name in lower case, or `None` if the header is malformed."""
    if match is None or int(match["port"] or 0) > 65535:
        return None
    try:
        return str(IPv6Address(match["ipv6"])) if match["ipv6"] else match["name"].lower()
    except ValueError:
        return None


def _require_own_page(request: web.Request) -> None:
    """Refuse pages of other sites, by headers that no page can forge.

    A download from the same origin has no Origin, only a Referer or Sec-Fetch-Site.
    """
    sender = request.headers.get("Origin") or request.headers.get("Referer", "")
    is_own = sender.split("/")[2:3] == [request.host]
    if not is_own and (sender or request.headers.get("Sec-Fetch-Site") != "same-origin"):
        raise web.HTTPForbidden(text="Only the page of this address may play.")


def _is_in(number: int, low: int, high: int) -> bool:
    return low <= number <= high and not isinstance(number, bool)  # true is an int, too


def _as_message(frame: Frame) -> Message:
    shown = {each.name: getattr(frame, each.name) for each in fields(frame)}
    picture = base64.b64encode(encode_image(shown.pop("pictures"))).decode("ascii")
    return shown | {"picture": f"data:image/png;base64,{picture}"}
