"""Run functions in a fresh process, without effects of other tests."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")


def in_a_fresh_process(call: Callable[[], T]) -> T:
    """Return the result of a module's function in a fresh process, or raise its exception.

    What other tests have left behind in this process, caches, threads, freed room and millions of objects,
    changes what is counted and how long a search takes. Fresh processes are forked from one that has imported
    torch, and done nothing.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "hypothesis", "pytest", "heapwatch"])
    with ProcessPoolExecutor(1, context) as fresh:
        return fresh.submit(call).result()
