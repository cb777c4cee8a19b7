"""A FastAPI server on uvicorn that classifies vectors, and a client that sends requests to it."""

import argparse
import socket
import threading
import time
import uuid

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI, Request

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20_000, help="requests")
steps = parser.parse_args().steps

app = FastAPI()
weights = np.random.default_rng(1).standard_normal((1_024, 8))


class Classifier:
    """A linear classifier."""

    def __init__(self):
        self.scratch = np.empty(1_024)

    def classify(self, values):
        """Return the class of a vector."""
        self.scratch[:] = values
        return int((self.scratch @ weights).argmax())


@app.post("/classify")
async def classify(request: Request):
    """Return the class of the posted vector."""
    body = await request.json()
    found = Classifier().classify(tuple(body["values"]))
    return {"id": body["id"], "class": found}


def send_requests(port):
    """Send random vectors to the server."""
    random = np.random.default_rng(2)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        for _ in range(steps):
            values = random.standard_normal(1_024).tolist()
            client.post("/classify", json={"id": uuid.uuid4().hex, "values": values})
            time.sleep(0.01)


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))


def run_client():
    """Send all requests, then stop the server."""
    while not server.started:
        time.sleep(0.1)
    send_requests(port)
    server.should_exit = True


threading.Thread(target=run_client, daemon=True).start()
server.run()
