"""The page in a real browser: keys are pressed, buttons are touched, and its display is read."""

import asyncio
import base64
import io
import math
from pathlib import Path

import numpy as np
from PIL import Image

from ..chromium import DESKTOP, NEED_CHROMIUM, PHONE, browser
from ..workflows.tiny import IMAGE, tiny_workflow
from .serving import serving

WIDTH, HEIGHT = DESKTOP
BACKGROUND = (20, 22, 26)
LEAST_TOUCHED = 44  # pixels of a button that a finger hits
HAS_FRAME = "typeof recent !== 'undefined' && recent.length > 0"


@NEED_CHROMIUM
def test_the_page_plays_by_keys_and_shows_game_and_dream(tmp_path: Path) -> None:
    async def run() -> bytes:
        async with serving() as port, browser(tmp_path / "profile") as tab:
            await tab.open(f"http://127.0.0.1:{port}/", *DESKTOP)
            await tab.wait_until(HAS_FRAME)
            assert await tab.value("[$('state').textContent, $('start').textContent, $('start').hidden]") == [
                "paused", "Press an arrow key", False,
            ]  # fmt: skip
            await asyncio.sleep(0.3)
            assert await tab.value("recent.length") == 1  # the game waits for the first key
            await tab.press("ArrowLeft")
            await tab.wait_until("recent.length > 5")
            assert await tab.value("[$('state').textContent, $('start').hidden]") == ["you play", True]
            await tab.wait_until("document.querySelector('#actions .on')?.textContent === 'NOOP'")
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
        assert (part != BACKGROUND).any(-1).mean() > 0.5  # most of it is picture
    assert np.unique(left.reshape(-1, 3), axis=0).shape[0] > 5  # Pong's colours


@NEED_CHROMIUM
def test_the_page_goes_on_if_a_number_is_not_finite(tmp_path: Path) -> None:
    workflow = tiny_workflow(IMAGE)
    for parameter in workflow.controller.critic.parameters():
        parameter.data.fill_(math.nan)

    async def run() -> None:
        async with serving(workflow=workflow) as port, browser(tmp_path / "profile") as tab:
            await tab.open(f"http://127.0.0.1:{port}/", *DESKTOP)
            await tab.wait_until(HAS_FRAME)
            await tab.press("ArrowLeft")
            await tab.wait_until("recent.length > 5")
            assert await tab.value("['value0', 'value1'].map(id => $(id).textContent)") == ["-", "-"]

    asyncio.run(run())


@NEED_CHROMIUM
def test_a_phone_shows_game_and_dream_above_buttons_that_play(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving() as port, browser(tmp_path / "profile") as tab:
            await tab.open(f"http://127.0.0.1:{port}/", *PHONE, is_phone=True)
            await tab.wait_until(HAS_FRAME)
            assert await tab.value("$('start').textContent") == "Tap to start"
            assert await tab.value("document.documentElement.scrollWidth") <= PHONE[0]
            boxes = await tab.value(
                "['#game', '#dream', '#pad', '[data-key=up]'].map(each =>"
                " document.querySelector(each).getBoundingClientRect().toJSON())"
            )
            game, dream, pad, up = boxes
            assert game["right"] < dream["left"] and game["width"] > PHONE[0] / 3
            assert game["bottom"] < pad["top"] and pad["bottom"] <= PHONE[1]
            assert min(up["width"], up["height"]) >= LEAST_TOUCHED
            finger = {"x": up["left"] + up["width"] / 2, "y": up["top"] + up["height"] / 2}
            await tab.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[finger])
            await tab.wait_until("document.querySelector('#actions .on')?.textContent === 'RIGHT'")
            assert await tab.value("$('state').textContent") == "you play"
            await tab.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            await tab.wait_until("document.querySelector('#actions .on')?.textContent === 'NOOP'")

    asyncio.run(run())
