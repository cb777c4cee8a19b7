"""Run functions in a fresh process, unaffected by other tests."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")


def in_a_fresh_process(call: Callable[[], T]) -> T:
    """Return the result of a module's function in a fresh process, or raise its exception.

    Caches, threads, freed memory and millions of objects from earlier tests would change counts and search
    times.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(call).result()
