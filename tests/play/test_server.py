"""The page's server, spoken to by a real client over the loopback device."""

import asyncio
import base64
import io
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType
from PIL import Image

from reverie.utils.errors import UserError

from .serving import HORIZON, serving

Message = dict[str, Any]
MALFORMED = (
    "",
    "{",
    "[" * 1000,
    "null",
    '{"do": "fly"}',
    '{"do": "step"}',
    '{"do": "step", "action": 6}',
    '{"do": "step", "action": -1}',
    '{"do": "step", "action": true}',
    '{"do": "step", "action": 1.0}',
    '{"do": "step", "action": "0"}',
    '{"do": "horizon", "to": 0}',
    '{"do": "horizon", "to": 10001}',
    '{"do": "seed", "to": 4294967296}',
    '{"do": "seed", "to": 1' + "0" * 900 + "}",
)


def with_client(test: Callable[[ClientSession, str], Awaitable[None]]) -> None:
    """Run a test with a client, and the address of a server."""

    async def run() -> None:
        async with serving() as port, ClientSession() as client:
            await test(client, f"http://127.0.0.1:{port}")

    asyncio.run(run())


async def connect(client: ClientSession, url: str) -> tuple[ClientWebSocketResponse, Message, Message]:
    """Open the page's connection; return it, what it says of the run, and the first frame."""
    page = await client.ws_connect(f"{url}/socket", origin=url)
    return page, await page.receive_json(), await page.receive_json()


async def ask(page: ClientWebSocketResponse, **message: Any) -> Message:
    await page.send_json(message)
    return await page.receive_json()


def test_a_page_plays_and_each_message_is_answered_by_one() -> None:
    async def test(client: ClientSession, url: str) -> None:
        async with client.get(url) as response:
            text = await response.text()
            assert response.content_type == "text/html" and "http:" not in text and "https:" not in text
        page, facts, first = await connect(client, url)
        assert facts["actions"][2] == "RIGHT" and facts["keys"]["up"] == 2 and facts["horizon"] == HORIZON
        assert (first["step"], first["age"], first["action"]) == (0, 0, None)
        frame = await ask(page, do="step", action=3)
        assert (frame["step"], frame["age"], frame["action"]) == (1, 1, 3)
        assert (await ask(page, do="step", action=None))["action"] in range(6)
        assert (await ask(page, do="back"))["step"] == 0
        assert (await ask(page, do="horizon", to=1))["age"] == 0
        ages = [(await ask(page, do="step", action=0))["age"] for _ in range(3)]
        assert ages == [1, 0, 1]
        assert (await ask(page, do="dream"))["step"] == 3
        assert (await ask(page, do="new"))["step"] == 0
        assert (await ask(page, do="skip"))["step"] == 100
        again = await ask(page, do="seed", to=0)
        assert again == first
        await page.close()

    with_client(test)


def test_the_picture_is_game_dream_and_difference_and_the_gif_has_all_of_them() -> None:
    async def test(client: ClientSession, url: str) -> None:
        page, _, _ = await connect(client, url)
        frames = [await ask(page, do="step", action=2) for _ in range(4)]
        coded = frames[-1]["picture"].removeprefix("data:image/png;base64,")
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(coded))), np.int16)
        game, dream, difference = np.split(picture, 3, axis=1)
        assert picture.shape == (64, 192, 3) and np.array_equal(difference, np.abs(game - dream))
        async with client.get(f"{url}/dream.gif") as response:
            gif = Image.open(io.BytesIO(await response.read()))
        gif.seek(gif.n_frames - 1)  # pyright: ignore[reportAttributeAccessIssue]
        assert gif.size == (768, 256)
        last = np.asarray(gif.convert("RGB"), np.int16)[::4, ::4]
        assert np.abs(last - picture).mean() < 16  # 256 colours are left of those of noise
        await page.close()

    with_client(test)


def test_a_malformed_message_is_answered_and_changes_nothing() -> None:
    async def test(client: ClientSession, url: str) -> None:
        page, _, first = await connect(client, url)
        for text in MALFORMED:
            await page.send_str(text)
            assert "This was not understood" in (await page.receive_json())["error"], text
        await page.send_bytes(b'{"do": "new"}')
        assert "no text" in (await page.receive_json())["error"]
        assert (await ask(page, do="step", action=0))["step"] == first["step"] + 1
        await page.send_str(json.dumps({"do": "new", "more": "x" * 2000}))
        assert (await page.receive()).type is WSMsgType.CLOSE
        page, _, again = await connect(client, url)  # the server is still there
        assert again["step"] == 1
        await page.close()

    with_client(test)


def test_a_foreign_page_cannot_play_and_a_foreign_name_sees_nothing() -> None:
    async def test(client: ClientSession, url: str) -> None:
        for origin in ("http://elsewhere.org", url.replace("127.0.0.1", "localhost"), "null", None):
            headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
            headers |= {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="} | (
                {"Origin": origin} if origin else {}
            )
            async with client.get(f"{url}/socket", headers=headers) as response:
                assert response.status == 403, origin
        for path in ("/", "/dream.gif", "/socket"):
            async with client.get(url + path, headers={"Host": "elsewhere.org"}) as response:
                assert response.status == 403, path
        port = url.rpartition(":")[2]
        async with client.get(url, headers={"Host": f"localhost:{port}"}) as response:  # through a tunnel
            assert response.status == 200

    with_client(test)


def test_a_newer_page_takes_over_and_finds_the_game_where_it_was() -> None:
    async def test(client: ClientSession, url: str) -> None:
        older, _, _ = await connect(client, url)
        assert (await ask(older, do="step", action=1))["step"] == 1
        newer, _, first = await connect(client, url)
        assert "Another page has taken over" in (await older.receive_json())["error"]
        assert (await older.receive()).type is WSMsgType.CLOSE
        assert first["step"] == 1 and (await ask(newer, do="step", action=1))["step"] == 2
        await newer.close()

    with_client(test)


def test_the_end_of_the_command_closes_the_page() -> None:
    async def run() -> str | None:
        async with ClientSession() as client:
            async with serving() as port:
                page, _, _ = await connect(client, f"http://127.0.0.1:{port}")
            return (await page.receive()).extra

    assert asyncio.run(run()) == "the command has ended"


@pytest.mark.parametrize("host", ["192.0.2.1", "a" * 64])  # one for documentation; longer than names can be
def test_a_host_that_is_none_of_this_machine_is_refused(host: str) -> None:
    async def run() -> None:
        async with serving(host):
            pass

    with pytest.raises(UserError, match=rf"port=0 of host={host} cannot be opened: .* port=0 takes"):
        asyncio.run(run())


def test_other_addresses_of_this_machine_may_be_served_on_purpose() -> None:
    async def run() -> int:
        async with serving("0.0.0.0") as port, ClientSession() as client:
            headers = {"Host": f"{socket.gethostname()}:{port}"}
            async with client.get(f"http://127.0.0.1:{port}", headers=headers) as response:
                return response.status

    assert asyncio.run(run()) == 200
