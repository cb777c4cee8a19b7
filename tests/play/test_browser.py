"""The page in a real browser, driven through DevTools: key presses and the displayed content."""

import asyncio
import base64
import io
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, ClientWebSocketResponse
from PIL import Image

from ..runs.warm import LONG_ENOUGH_SECONDS
from .serving import serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run")
WIDTH, HEIGHT = 1280, 800
BACKGROUND = (20, 22, 26)


class Browser:
    """One tab, controlled through DevTools messages."""

    def __init__(self, connection: ClientWebSocketResponse) -> None:
        self._connection = connection
        self._count = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        await self._connection.send_json({"id": self._count, "method": method, "params": parameters})
        while (answer := await self._connection.receive_json()).get("id") != self._count:
            # This is an event.
            pass
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

    async def key(self, kind: str, key: str) -> None:
        await self.call("Input.dispatchKeyEvent", type=kind, key=key)

    async def press(self, key: str) -> None:
        await self.key("keyDown", key)
        await self.key("keyUp", key)


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Browser]:
    """Start a browser with its own profile, and close it."""
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


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, chromium-browser or google-chrome on the PATH")
def test_the_page_plays_by_keys_and_shows_game_and_dream(tmp_path: Path) -> None:
    async def run() -> bytes:
        async with serving() as port, browser(tmp_path / "profile") as tab:
            await tab.call(
                "Emulation.setDeviceMetricsOverride",
                width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False,
            )  # fmt: skip
            await tab.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
            await tab.wait_until("typeof recent !== 'undefined' && recent.length > 5")
            assert await tab.value("document.querySelector('#actions .on').textContent") == "NOOP"
            await tab.key("keyDown", "ArrowUp")
            await tab.wait_until("document.querySelector('#actions .on')?.textContent === 'RIGHT'")
            await tab.key("keyDown", " ")
            await tab.wait_until("document.querySelector('#actions .on')?.textContent === 'RIGHTFIRE'")
            await tab.key("keyUp", " ")
            await tab.key("keyUp", "ArrowUp")
            await tab.wait_until("document.querySelector('#actions .on')?.textContent === 'NOOP'")
            await tab.press("a")
            assert await tab.value("$('state').textContent") == "the agent plays"
            await tab.press("p")
            await tab.wait_until("waiting === 0")
            await tab.value("drawing.then(() => { shown = recent.at(-1).step; })")
            await tab.wait_until("typeof shown === 'number'")
            await tab.press(".")
            await tab.wait_until("recent.at(-1).step === shown + 1")
            await tab.press("n")
            await tab.wait_until("$('step').textContent === 'step 0'")
            await tab.press("l")
            await tab.wait_until("$('step').textContent === 'step 100'")
            assert await tab.value("$('state').textContent") == "paused"
            await tab.value("$('horizon').value = 7, $('horizon').onchange()")
            await tab.press(".")
            await tab.wait_until("$('age').textContent === '1 of 7 steps'")
            # The message must not be sent.
            await tab.value("$('horizon').value = '', $('horizon').onchange(), $('horizon').blur()")
            await tab.press(".")
            await tab.wait_until("$('age').textContent === '2 of 7 steps'")
            size = await tab.value("[document.body.scrollWidth, document.documentElement.scrollHeight]")
            # No scrolling is needed.
            assert size[0] <= WIDTH and size[1] <= HEIGHT
            assert await tab.value("$('note').textContent") == ""
            picture = await tab.call("Page.captureScreenshot", format="png")
        return base64.b64decode(picture["data"])

    shown = np.asarray(Image.open(io.BytesIO(asyncio.run(run()))).convert("RGB"))
    assert shown.shape == (HEIGHT, WIDTH, 3)
    left, middle, right = np.array_split(shown[120:400, 32:-32], 3, axis=1)
    for part in (left, middle, right):
        # Most of it is image content.
        assert (part != BACKGROUND).any(-1).mean() > 0.5
    # These are Pong's colors.
    assert np.unique(left.reshape(-1, 3), axis=0).shape[0] > 5
