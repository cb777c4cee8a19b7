"""A real browser, driven through its DevTools."""

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse

from .runs.warm import LONG_ENOUGH_SECONDS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run")
DESKTOP = (1280, 800)
PHONE = (390, 844)
NEED_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium, chromium-browser or google-chrome on the PATH"
)


class Browser:
    """One tab, queried through DevTools messages."""

    def __init__(self, connection: ClientWebSocketResponse) -> None:
        self._connection = connection
        self._count = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        await self._connection.send_json({"id": self._count, "method": method, "params": parameters})
        while (answer := await self._connection.receive_json()).get("id") != self._count:
            pass  # an event
        return answer["result"]

    async def value(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def wait_until(self, expression: str) -> None:
        end = time.monotonic() + LONG_ENOUGH_SECONDS
        while not await self.value(expression):
            assert time.monotonic() < end, (expression, await self.value("document.body.innerText"))
            await asyncio.sleep(0.05)

    async def open(self, url: str, width: int, height: int, *, is_phone: bool = False) -> None:
        """Open a page in a window of this size, and wait until it has loaded."""
        scale = 3 if is_phone else 1
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=is_phone,
        )  # fmt: skip
        await self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        await self.call("Page.navigate", url=url)
        await self.wait_until(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")

    async def key(self, kind: str, key: str) -> None:
        await self.call("Input.dispatchKeyEvent", type=kind, key=key)

    async def press(self, key: str) -> None:
        await self.key("keyDown", key)
        await self.key("keyUp", key)


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Browser]:
    """Start a browser with its own profile, and end it."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    log = profile.with_suffix(".log")
    with log.open("w") as errors, subprocess.Popen(command, stderr=errors, stdout=errors) as process:
        try:
            end = time.monotonic() + LONG_ENOUGH_SECONDS
            while not (found := re.search(r"ws://([^/]+)/", log.read_text())):
                assert process.poll() is None and time.monotonic() < end, log.read_text()
                await asyncio.sleep(0.05)
            async with ClientSession() as client:
                async with client.get(f"http://{found[1]}/json") as response:
                    [tab] = [each for each in await response.json() if each["type"] == "page"]
                async with client.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as connection:
                    yield Browser(connection)
        finally:
            process.terminate()
