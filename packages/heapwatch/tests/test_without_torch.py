"""Programs without PyTorch are watched without importing it, and a late import of it is noticed."""

import re
from pathlib import Path

import pytest

from .test_watch_command import WATCH, read
from .watching import python, write

UNTIL_A_LEAK = """
    import json, sys, time
    from store import Store
    store = Store()
    while json.load(open("report/watch.json"))["verdict"] != "leak":
        store.add()
        time.sleep(0.002)
    assert "torch" not in sys.modules
"""
ARRAYS = """
    import numpy as np
    class Store:
        def __init__(self):
            self.history = []
        def add(self):
            self.history.append(np.zeros(8_000))
"""
# A server with real sockets: each request stays in a list.
SERVER = """
    import asyncio
    class Store:
        def __init__(self):
            self.history = []
            self.loop = asyncio.new_event_loop()
            self.server = self.loop.run_until_complete(asyncio.start_server(self.answer, "127.0.0.1", 0))
        async def answer(self, reader, writer):
            self.history.append(await reader.read())
            writer.close()
        async def ask(self):
            reader, writer = await asyncio.open_connection(*self.server.sockets[0].getsockname())
            writer.write(bytes(40_000))
            writer.write_eof()
            await reader.read()
            writer.close()
        def add(self):
            self.loop.run_until_complete(self.ask())
"""


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (ARRAYS, r"Store\.history \(list, [\d,]+ arrays, store\.py:7\) grows"),
        (SERVER, r"Store\.history \(list, [\d,]+ bytes objects, store\.py:9\) grows"),
    ],
)
def test_a_leak_is_found_where_torch_cannot_be_imported(tmp_path: Path, module: str, message: str) -> None:
    write(tmp_path, 'raise ImportError("this machine has no PyTorch")', "torch.py")
    write(tmp_path, module, "store.py")
    write(tmp_path, UNTIL_A_LEAK)
    seen = python(tmp_path, *WATCH, "--fail-on-leak", "--at", "store:Store.add", "train.py")
    assert seen.returncode == 1, seen.stderr
    assert re.search(message, seen.stderr), seen.stderr


@pytest.mark.parametrize("stub", ["types.ModuleType", "mock.MagicMock"])
def test_a_stub_of_torch_is_not_read(tmp_path: Path, stub: str) -> None:
    write(tmp_path, ARRAYS, "store.py")
    names = ("torch", "torch.nn", "torch.optim", "torch.optim.optimizer")
    stubs = f"""
        import sys, types
        from unittest import mock
        sys.modules |= {{name: {stub}(name) for name in {names}}}
    """
    write(tmp_path, stubs + UNTIL_A_LEAK.replace("    ", "        ").rpartition("assert")[0])
    seen = python(tmp_path, *WATCH, "--at", "store:Store.add", "train.py")
    assert "Store.history (list" in seen.stderr and "internal error" not in seen.stderr, seen.stderr


def test_a_late_import_of_torch_is_noticed(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import json, sys, time
        from heapwatch import no_growth
        no_growth(steps=24)(list)()
        assert "torch" not in sys.modules
        import torch
        weight = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        losses = []
        while json.load(open("report/watch.json"))["verdict"] != "leak":
            losses.append(torch.ones(5_000).mul(weight).sum())
            losses[-1].backward(retain_graph=True)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.002)
        """,
    )
    seen = python(tmp_path, *WATCH, "train.py")
    report = read(tmp_path)
    assert report["verdict"] == "leak" and report["unit"] == "steps", seen.stderr
    assert "train.losses (list" in seen.stderr and "keeps every autograd graph alive" in seen.stderr
