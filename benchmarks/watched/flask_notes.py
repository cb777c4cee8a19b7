"""A Flask app that stores notes, a job that indexes the newest, and a client that posts notes."""

import argparse
import collections
import http.client
import logging
import random
import threading
import time

from flask import Flask, g, jsonify, request
from werkzeug.serving import make_server

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1_000, help="requests")
steps = parser.parse_args().steps
logging.getLogger("werkzeug").setLevel(logging.ERROR)
app = Flask(__name__)
newest = collections.deque(maxlen=50)
rejected = collections.deque(maxlen=50)


@app.errorhandler(ValueError)
def reject(error):
    """Tell the client what is wrong with its note."""
    rejected.append(str(error))
    return jsonify(error=str(error)), 422


@app.post("/notes")
def create_note():
    """Store the posted note if it is long enough."""
    note = {"author": request.args["author"], "words": request.get_data(as_text=True).split()}
    if len(note["words"]) < 500:
        raise ValueError(f"a note of {len(note['words'])} words is too short")
    newest.append(note)
    return jsonify(author=note["author"], words=len(note["words"])), 201


def send_notes(port):
    """Post long and short notes."""
    for number in range(steps):
        text = " ".join(random.randbytes(8).hex() for _ in range(400 if number % 2 == 0 else 1_000))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", f"/notes?author={number % 9}", text)
        connection.getresponse().read()
        time.sleep(0.05)


server = make_server("127.0.0.1", 0, app, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = threading.Thread(target=send_notes, args=(server.port,), daemon=True)
client.start()
while client.is_alive():
    context = app.app_context()
    context.push()
    g.words = collections.Counter(newest[-1]["words"]) if newest else {}
    app.logger.debug("the newest note has %d different words", len(g.words))
    context.pop()
    time.sleep(0.2)
