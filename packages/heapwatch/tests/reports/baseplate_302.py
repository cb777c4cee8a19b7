"""Fill a queue of work faster than the workers empty it.

Report: https://github.com/reddit/baseplate.py/issues/302
Cause: the queue has no limit, so the consumer accepts messages until the memory is full.
Resolution: set maxsize when the queue is created.
"""

import queue


class Worker:
    def __init__(self, maxsize: int) -> None:
        self.work_queue: queue.Queue[bytes] = queue.Queue(maxsize)

    def on_message(self, body: bytes) -> None:
        try:
            self.work_queue.put(body, block=False)  # grows
        except queue.Full:
            pass


worker, limited = Worker(0), Worker(10)


def step(number: int, worker: Worker = worker) -> None:
    for _ in range(3):
        worker.on_message(bytes(20_000))
    worker.work_queue.get()


def resolved(number: int) -> None:
    step(number, limited)
