"""A process in which no other test has run."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")


def in_a_fresh_process(call: Callable[[], T]) -> T:
    """Return what a function of a module returns there, or raise what it raises.

    What other tests have left behind in this process, caches, threads, freed room and millions of objects,
    changes what is counted and how long a search takes.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(call).result()
