"""A chat server with the websockets library, and guests that join, talk and leave again."""

import argparse
import asyncio
import random

from websockets.asyncio.client import connect
from websockets.asyncio.server import broadcast, serve

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1_000, help="messages")
steps = parser.parse_args().steps
guests = set()


async def whisper(websocket, mailbox):
    """Send a guest the messages that only it may read."""
    while True:
        await websocket.send(await mailbox.get())


async def handle(websocket, inbox):
    """Pass the messages of a guest on until it leaves."""
    mailbox = asyncio.Queue(maxsize=10)
    mailbox.put_nowait(f"Welcome! {len(guests)} guests are here.")
    guests.add(websocket)
    whispers = asyncio.create_task(whisper(websocket, mailbox))
    async for text in websocket:
        await inbox.put(text)
        broadcast(guests, text)
    guests.discard(websocket)
    whispers.cancel()


async def talk(port):
    """Join, post ten messages, leave, and join again."""
    for _ in range(steps // 40):
        async with connect(f"ws://127.0.0.1:{port}") as websocket:
            for _ in range(10):
                text = random.randbytes(12_000).hex()
                await websocket.send(text)
                while await websocket.recv() != text:
                    pass
                await asyncio.sleep(0.2)


async def main():
    """Run the server and four guests, and report links."""
    inbox = asyncio.Queue(maxsize=100)
    server = await serve(lambda websocket: handle(websocket, inbox), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(talk(port))
        for _ in range(steps // 40 * 40):
            if "http" in await inbox.get():
                print("somebody posted a link", flush=True)


asyncio.run(main())
