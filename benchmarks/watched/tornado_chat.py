"""A tornado chat server with long polling and an archive, a client that posts, and clients that listen."""

import argparse
import asyncio
import itertools
import json
import random
from collections import deque

from tornado.httpclient import AsyncHTTPClient
from tornado.ioloop import PeriodicCallback
from tornado.locks import Condition
from tornado.netutil import bind_sockets
from tornado.queues import Queue
from tornado.web import Application, HTTPServer, RequestHandler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=700, help="messages")
steps = parser.parse_args().steps
messages, posted = deque(maxlen=20), Condition()
numbers, listening = itertools.count(), {}
archive = Queue(maxsize=100)


class PostHandler(RequestHandler):
    async def post(self):
        messages.append(json.loads(self.request.body))
        posted.notify_all()
        await archive.put(messages[-1])
        self.write({"longest": max((handler.waited for handler in listening.values()), default=0)})


class NewsHandler(RequestHandler):
    def prepare(self):
        self.number, self.waited, self.news = next(numbers), 0, None
        listening[self.number] = self
        self.clock = PeriodicCallback(self.tick, 15_000)
        self.clock.start()

    def tick(self):
        self.waited += 15

    async def get(self):
        await posted.wait()
        self.news = list(messages)[-3:]
        self.write({"news": self.news})

    def on_finish(self):
        self.clock.stop()
        listening.pop(self.number)


async def write_archive():
    """Pretend to send the messages to a storage with 2 MB/s."""
    async for message in archive:
        await asyncio.sleep(len(message["text"]) / 2_000_000)


async def listen(url):
    while True:
        await AsyncHTTPClient().fetch(url + "/news", request_timeout=60)


async def main():
    sockets = bind_sockets(0, "127.0.0.1")
    HTTPServer(Application([("/post", PostHandler), ("/news", NewsHandler)])).add_sockets(sockets)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    tasks = [asyncio.create_task(work) for work in (write_archive(), listen(url), listen(url))]
    for number in range(steps):
        body = json.dumps({"text": f"{number} {random.randbytes(10_000).hex()}"})
        await AsyncHTTPClient().fetch(url + "/post", method="POST", body=body)
        await asyncio.sleep(0.07)
    [task.cancel() for task in tasks]
    posted.notify_all()
    await asyncio.sleep(0.5)


asyncio.run(main())
