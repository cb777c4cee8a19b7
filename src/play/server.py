"""The page of `reverie-play`: it asks for each step, so nothing runs while nobody looks."""

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.parse import urlsplit

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

Result = TypeVar("Result")
Message = dict[str, Any]


class PlayServer:
    """Shows a session to one page; a newer page takes it over.

    Every message of the page is answered by one: a frame, or `{"error": ...}`. The session works in a thread
    of its own, one request after the other.

    Args:
        session: The session, restarted.
        facts: What the page shows of run and environment, and needs to choose actions: `actions`, `keys`.
    """

    def __init__(self, session: DreamSession, facts: Message) -> None:
        self._session, self._facts = session, facts
        self._actions: int = len(facts["actions"])
        self._page = Path(__file__).with_name("page.html").read_text("utf-8")
        self._thread = ThreadPoolExecutor(1, "play")
        self._viewer: web.WebSocketResponse | None = None

    async def serve(self, host: str, port: int, announce: Callable[[int], None]) -> None:
        """Answer pages until it is cancelled; `announce` gets the port once it is open, for 0 a free one.

        Raises:
            UserError: If the port cannot be opened.
        """
        guards = [only_known_hosts] if host in _LOOPBACK else []
        app = web.Application(middlewares=guards)
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

    async def _root(self, _: web.Request) -> web.Response:
        return web.Response(text=self._page, content_type="text/html", headers={"Cache-Control": "no-store"})

    async def _gif(self, _: web.Request) -> web.Response:
        body = await self._run(self._encode_gif)
        headers = {"Content-Disposition": 'attachment; filename="dream.gif"', "Cache-Control": "no-store"}
        return web.Response(body=body, content_type="image/gif", headers=headers)

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        """Play with one page, until it leaves or another one comes."""
        if urlsplit(request.headers.get("Origin", "")).netloc != request.host:
            raise web.HTTPForbidden(text="Only the page of this address may play.")
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


@web.middleware
async def only_known_hosts(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refuse pages whose own name leads to this machine: their Origin would equal the host."""
    if urlsplit(f"//{request.host}").hostname not in _LOOPBACK:
        raise web.HTTPForbidden(text="Open this page as localhost or 127.0.0.1.")
    return await handler(request)


def _is_in(number: int, low: int, high: int) -> bool:
    return low <= number <= high and not isinstance(number, bool)  # true is an int, too


def _as_message(frame: Frame) -> Message:
    shown = {each.name: getattr(frame, each.name) for each in fields(frame)}
    picture = base64.b64encode(encode_image(shown.pop("pictures"))).decode("ascii")
    return shown | {"picture": f"data:image/png;base64,{picture}"}
