"""The server of the play page, tested by a real client on the loopback device."""

import asyncio
import base64
import io
import json
import math
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, WSServerHandshakeError
from PIL import Image

from reverie.utils.errors import UserError

from ..workflows.tiny import IMAGE, tiny_workflow
from .serving import HORIZON, serving, serving_with_token

Message = dict[str, Any]
MALFORMED_HOSTS = (
    b"[", b"]", b"[::1", b"[::1]x", b"x[::1]", b"[::1]:1:1", b"[127.0.0.1]", b"[:::]", b"[v1.x]",
    b"127.0.0.1:x", b"127.0.0.1:655360", b"127.0.0.1:-1", b"127.0.0.1:1:1", b":1", b"user@127.0.0.1",
    b"127.0.0.1/", b"127.0.0.1?", b"127.0.0.1#", b"127.0.0.1,127.0.0.1", b"127.0.0.1 localhost", b"", b"%31",
    b"\xff", "\u2100".encode(), "127.0.0.\u0661".encode(),
)  # fmt: skip
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
    """Run a test with a client and the address of a server."""

    async def run() -> None:
        async with serving() as port, ClientSession() as client:
            await test(client, f"http://127.0.0.1:{port}")

    asyncio.run(run())


async def connect(client: ClientSession, url: str) -> tuple[ClientWebSocketResponse, Message, Message]:
    """Open the page's connection. Return it, the description of the run, and the first frame."""
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
        async with client.get(f"{url}/dream.gif", headers={"Referer": f"{url}/"}) as response:
            gif = Image.open(io.BytesIO(await response.read()))
        gif.seek(gif.n_frames - 1)  # pyright: ignore[reportAttributeAccessIssue]
        assert gif.size == (768, 256)
        last = np.asarray(gif.convert("RGB"), np.int16)[::4, ::4]
        # Noise is reduced to 256 colors.
        assert np.abs(last - picture).mean() < 16
        await page.close()

    with_client(test)


def test_numbers_that_are_not_finite_are_null() -> None:
    """Browsers refuse NaN in JSON."""

    async def run() -> None:
        workflow = tiny_workflow(IMAGE)
        for parameter in workflow.controller.critic.parameters():
            parameter.data.fill_(math.nan)
        async with serving(workflow=workflow) as port, ClientSession() as client:
            page, _, first = await connect(client, f"http://127.0.0.1:{port}")
            assert first["value"] == [None, None] and math.isfinite(first["surprise"])
            await page.close()

    asyncio.run(run())


def test_a_malformed_message_is_answered_and_changes_nothing() -> None:
    async def test(client: ClientSession, url: str) -> None:
        page, _, first = await connect(client, url)
        for text in MALFORMED:
            await page.send_str(text)
            assert "Invalid request" in (await page.receive_json())["error"], text
        await page.send_bytes(b'{"do": "new"}')
        assert "no text" in (await page.receive_json())["error"]
        assert (await ask(page, do="step", action=0))["step"] == first["step"] + 1
        await page.send_str(json.dumps({"do": "new", "more": "x" * 2000}))
        assert (await page.receive()).type is WSMsgType.CLOSE
        # The server is still running.
        page, _, again = await connect(client, url)
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
        # This simulates a tunnel.
        async with client.get(url, headers={"Host": f"localhost:{port}"}) as response:
            assert response.status == 200

    with_client(test)


@pytest.mark.parametrize(
    ("sender", "status"),
    [
        ({}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://elsewhere.org"}, 403),
        ({"Origin": "http://elsewhere.org", "Referer": "{url}/", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Origin": "null"}, 403),
        ({"Referer": "http://elsewhere.org/?{url}/"}, 403),
        ({"Referer": "http://["}, 403),
        ({"Origin": "{url}"}, 200),
        ({"Referer": "{url}/"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_the_gif_is_for_the_page_that_made_it(sender: dict[str, str], status: int) -> None:
    async def test(client: ClientSession, url: str) -> None:
        headers = {name: text.format(url=url) for name, text in sender.items()}
        async with client.get(f"{url}/dream.gif", headers=headers) as response:
            assert response.status == status

    with_client(test)


async def status_of(port: int, path: str, *headers: bytes) -> int:
    """Send a request byte for byte, unlike a normal client, and return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\r\n".join([f"GET {path} HTTP/1.1".encode(), *headers, b"Connection: close", b"", b""]))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1])


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_malformed_host_or_origin_is_refused(address: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with serving(address) as port:
            host = b"127.0.0.1:%d" % port
            for malformed in MALFORMED_HOSTS:
                for path in ("/", "/dream.gif", "/socket"):
                    # aiohttp itself refuses some of them.
                    assert await status_of(port, path, b"Host: " + malformed) in (400, 403), malformed
                headers = (b"Host: " + host, b"Origin: http://" + malformed)
                assert await status_of(port, "/socket", *headers) == 403, malformed
            for malformed in (b"", b"x", host, b"http:" + host):
                headers = (b"Host: " + host, b"Origin: " + malformed)
                assert await status_of(port, "/socket", *headers) == 403, malformed

    asyncio.run(run())
    # An exception in the server would leave a record.
    assert not caplog.records


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


# A documentation address, and a name longer than allowed.
@pytest.mark.parametrize("host", ["192.0.2.1", "a" * 64])
def test_a_host_that_is_none_of_this_machine_is_refused(host: str) -> None:
    async def run() -> None:
        async with serving(host):
            pass

    with pytest.raises(UserError, match=rf"host={host} port=0 cannot be opened: .* Choose another host"):
        asyncio.run(run())


def test_beyond_this_machine_every_request_needs_the_token() -> None:
    async def run() -> None:
        async with serving_with_token("0.0.0.0") as (port, token), ClientSession() as client:
            url, host = f"http://127.0.0.1:{port}", f"{socket.gethostname()}:{port}"
            headers = {"Host": host, "Referer": f"http://{host}/?token={token}"}
            for path in ("/", "/dream.gif", "/socket", "/nothing"):
                for query in ("", "?token=", "?token=x", "?token=%ff", f"?token={token}x"):
                    async with client.get(url + path + query, headers=headers) as response:
                        assert response.status == 403 and "?token=" in await response.text(), path + query
            for path in ("/", "/dream.gif"):
                async with client.get(f"{url}{path}?token={token}", headers=headers) as response:
                    assert response.status == 200, path
            with pytest.raises(WSServerHandshakeError):
                await client.ws_connect(f"{url}/socket", origin=url)
            page = await client.ws_connect(f"{url}/socket?token={token}", origin=url)
            assert (await page.receive_json())["horizon"] == HORIZON
            await page.close()

    asyncio.run(run())
