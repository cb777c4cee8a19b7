"""Close each connection when the program ends.

Report: https://github.com/ARM-software/devlib/issues/676
Cause: atexit keeps the bound method, and with it every connection.
Resolution: register a weak reference, or unregister the method on close.
"""

import atexit

import numpy as np


class Connection:
    def __init__(self) -> None:
        self.buffer = np.ones(40_000, np.uint8)
        atexit.register(self.close)  # grows

    def close(self) -> None:
        atexit.unregister(self.close)


def step(number: int) -> None:
    Connection()


def resolved(number: int) -> None:
    Connection().close()
