"""Register methods of short-lived objects as callbacks of a long-lived connection.

Report: https://github.com/pyepics/pyepics/issues/156
Cause: the cache of connections keeps the bound methods, and with them every disconnected object.
Resolution: `disconnect` removes the callbacks of the object.
"""

from collections.abc import Callable

import numpy as np


class CacheItem:
    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []


channel = CacheItem()


class PV:
    def __init__(self) -> None:
        self.value = np.ones(40_000, np.uint8)
        channel.callbacks.append(self.on_connect)  # grows

    def on_connect(self) -> None:
        pass


def step(number: int) -> None:
    PV()


def resolved(number: int) -> None:
    disconnected = PV()
    channel.callbacks = [each for each in channel.callbacks if each != disconnected.on_connect]
