"""An aiohttp server that queues uploads for a worker task, and a client that uploads images to it."""

import argparse
import asyncio
import hashlib
import os

from aiohttp import ClientSession, web

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20_000, help="requests")
steps = parser.parse_args().steps


class Jobs:
    """Uploads that wait for the worker."""

    def __init__(self):
        self.queue = asyncio.Queue(maxsize=64)
        self.done = 0

    async def upload(self, request):
        """Queue the body of a request."""
        body = await request.read()
        await self.queue.put(body)
        return web.json_response({"bytes": len(body)})

    async def work(self):
        """Hash the uploads, one after another."""
        while True:
            body = await self.queue.get()
            hashlib.sha256(body).hexdigest()
            self.done += 1
            await asyncio.sleep(0.005)


async def main():
    """Run the server, the worker and the client."""
    jobs = Jobs()
    app = web.Application()
    app.router.add_post("/upload", jobs.upload)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    worker = asyncio.create_task(jobs.work())
    async with ClientSession(f"http://{host}:{port}") as session:
        for _ in range(steps):
            async with session.post("/upload", data=os.urandom(32_768)) as response:
                await response.json()
            await asyncio.sleep(0.002)
    worker.cancel()
    await runner.cleanup()


asyncio.run(main())
