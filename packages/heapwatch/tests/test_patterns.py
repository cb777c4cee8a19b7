"""A report names the owner, the line and the fix of known leak patterns, and no fix for anything else."""

import re
from functools import partial
from pathlib import Path

import pytest

from .fresh import in_a_fresh_process
from .leak_page import require_message_of_the_page
from .leaky_programs import LEAKS
from .similar_programs import DECOYS
from .watching import findings_of, write

# Each fix begins with one of these words.
WORDS = "Store|Add|Call|Set|Limit|Delete|Remove|Create|Map|Keep|Cache|Do|Capture|Warn|Use"
FIXES = re.compile(rf"\. ({WORDS}) ")


def run(source: str, folder: Path) -> list[str]:
    write(folder, source, "program.py")
    return in_a_fresh_process(partial(findings_of, folder, "program", "step")).messages


@pytest.mark.parametrize("name", LEAKS)
def test_a_known_pattern_has_its_owner_its_line_and_its_fix(name: str, tmp_path: Path) -> None:
    leak = LEAKS[name]
    messages = run(leak.source, tmp_path)
    lines = (tmp_path / "program.py").read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if line.endswith("# grows")]
    assert any(
        message.startswith(leak.owner)
        and f"program.py:{number})" in message
        and leak.fix in message
        and FIXES.search(message)
        for message in messages
    ), messages
    require_message_of_the_page(name, messages)


def test_a_variable_of_a_coroutine_is_named_by_its_function(tmp_path: Path) -> None:
    source = """
        import types
        import numpy
        @types.coroutine
        def pause():
            yield
        async def serve():
            inbox = []
            while True:
                inbox.append(numpy.zeros(2_000))
                await pause()
        server = serve()
        def step(number):
            server.send(None)
        """
    messages = run(source, tmp_path)
    assert any(
        re.match(r"inbox in serve\(\) \(list, \d+ arrays, program\.py:10\)", each) for each in messages
    ), messages


def test_coroutines_that_never_end_are_counted(tmp_path: Path) -> None:
    source = """
        import asyncio
        import numpy
        loop = asyncio.new_event_loop()
        async def keep():
            rows = [numpy.zeros(500) for _ in range(4)]
            await asyncio.sleep(1e6)
            print(rows)
        def step(number):
            loop.create_task(keep())
            loop.call_soon(loop.stop)
            loop.run_forever()
        """
    messages = run(source, tmp_path)
    pattern = r"rows in keep\(\) \(\d+ waiting calls, program\.py:6\) grows"
    assert any(re.match(pattern, each) for each in messages), messages


def test_a_linked_list_is_named_without_repetitions(tmp_path: Path) -> None:
    source = """
        import types
        import numpy
        newest = None
        def step(number):
            global newest
            newest = types.SimpleNamespace(rest=newest, pixels=numpy.zeros(2_000))
        """
    messages = run(source, tmp_path)
    assert any(re.match(r"program\.newest\.rest\S* [(g]", each) for each in messages), messages
    assert not any(".rest.rest" in each for each in messages), messages


def test_a_queue_of_a_library_is_a_queue(tmp_path: Path) -> None:
    source = """
        import collections
        import numpy
        class Queue:
            def __init__(self):
                self._queue = collections.deque()
            def put(self, item):
                self._queue.append(item)
            def get(self):
                return self._queue.popleft()
            def full(self):
                return False
            put_nowait, get_nowait = put, get
        pictures = Queue()
        def step(number):
            pictures.put(numpy.zeros(2_000))
            pictures.put(numpy.zeros(2_000))
            pictures.get()
        """
    messages = run(source, tmp_path)
    expected = r"program\.pictures \(Queue, \d+ arrays, .*\) is filled faster than it is read"
    assert any(re.match(expected, each) for each in messages), messages


def test_callbacks_that_a_signal_stores_in_tuples_are_recognized(tmp_path: Path) -> None:
    source = """
        import numpy
        class Signal:
            def __init__(self):
                self.receivers = []
            def connect(self, receiver, sender):
                self.receivers.append((sender, receiver, False))
        finished = Signal()
        def step(number):
            frame = numpy.zeros(2_000)
            finished.connect(lambda: print(frame.sum()), number)
        """
    messages = run(source, tmp_path)
    expected = r"Signal\.receivers \(list, \d+ tuple objects, .*\) keeps the variables of every closure"
    assert any(re.match(expected, each) for each in messages), messages


def test_a_log_of_functions_and_their_arguments_is_no_list_of_callbacks(tmp_path: Path) -> None:
    source = """
        import types
        import numpy
        log = []
        def step(number):
            log.append((step, types.SimpleNamespace(args=(numpy.zeros(2_000),))))
        """
    messages = run(source, tmp_path)
    assert messages and not any(map(FIXES.search, messages)), messages


@pytest.mark.parametrize("name", DECOYS)
def test_a_similar_program_gets_no_fix(name: str, tmp_path: Path) -> None:
    messages = run(DECOYS[name], tmp_path)
    assert messages and not any(map(FIXES.search, messages)), messages


# Containers of a library, with the beginning of the message. The program has no line with their names.
IN_LIBRARIES = {
    "entries of a library's list": (
        "program.rows.data (list, ",
        """
        import collections
        import numpy
        rows = collections.UserList()
        def step(number):
            rows.append(numpy.zeros(2_000))  # grows
        """,
    ),
    "an entry of a library's dict": (
        "program.store.data['rows'] (list, ",
        """
        import collections
        import numpy
        store = collections.UserDict(rows=[])
        def step(number):
            rows = store["rows"]
            rows.append(numpy.zeros(2_000))  # grows
        """,
    ),
    "a list under a constant key of a library's dict": (
        "program.store.data['rows'] (list, ",
        """
        import collections
        import numpy
        store = collections.UserDict()
        def step(number):
            rows = store.data.setdefault("rows", [])
            rows.append(numpy.zeros(2_000))  # grows
        """,
    ),
    "a list that is filled under another name": (
        "program.cache (list, ",
        """
        import numpy
        cache = []  # grows
        remember = cache.append
        def step(number):
            module = numpy.zeros(2_000)
            remember(module)
        """,
    ),
    "callbacks that a library wraps": (
        "program.stack._exit_callbacks (deque, ",
        """
        import contextlib
        import numpy
        stack = contextlib.ExitStack()
        def step(number):
            frame = numpy.zeros(2_000)
            def close():
                print(frame.sum())
            stack.callback(close)  # grows
        """,
    ),
    "modules by number": (
        "program.heads._modules (dict, ",
        """
        import torch
        heads = torch.nn.ModuleDict()
        def step(number):
            heads.add_module(f"head {number}", torch.nn.Linear(100, 100))  # grows
        """,
    ),
    "modules in a list": (
        "program.heads._modules (dict, ",
        """
        import torch
        heads = torch.nn.ModuleList()
        def step(number):
            heads.append(torch.nn.Linear(100, 100))  # grows
        """,
    ),
}


@pytest.mark.parametrize("name", IN_LIBRARIES)
def test_a_container_of_a_library_has_the_line_of_the_program_that_adds_to_it(
    name: str, tmp_path: Path
) -> None:
    owner, source = IN_LIBRARIES[name]
    messages = run(source, tmp_path)
    lines = (tmp_path / "program.py").read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if line.endswith("# grows")]
    assert any(each.startswith(owner) and f"program.py:{number})" in each for each in messages), messages


KEYED_BY_TUPLES = {
    "program.answers (dict, ": """
        answers = {}
        def step(number):
            for part in range(100):
                answers[number, part] = "yes"  # grows
        """,
    "program.pairs (Counter, ": """
        import collections
        pairs = collections.Counter()
        def step(number):
            for part in range(100):
                pairs[f"{number}", part] += 1  # grows
        """,
    "program.ask (lru_cache, ": """
        import functools
        @functools.cache  # grows
        def ask(number, part):
            return "yes"
        def step(number):
            for part in range(100):
                ask(number, part)
        """,
}


@pytest.mark.parametrize("owner", KEYED_BY_TUPLES)
def test_tuples_of_numbers_and_texts_count_as_their_keys(owner: str, tmp_path: Path) -> None:
    messages = run(KEYED_BY_TUPLES[owner], tmp_path)
    lines = (tmp_path / "program.py").read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if line.endswith("# grows")]
    assert any(each.startswith(owner) and f"program.py:{number})" in each for each in messages), messages


def test_a_cache_below_its_limit_is_only_filling(tmp_path: Path) -> None:
    source = """
        import functools
        @functools.lru_cache(maxsize=40_000)
        def render(number):
            return f"{number} " * 2000
        def step(number):
            for part in range(43):
                render(43 * number + part)
        """
    messages = run(source, tmp_path)
    assert messages and all(" is filling: " in each for each in messages), messages


def test_tensors_in_shared_memory_have_their_owner(tmp_path: Path) -> None:
    source = """
        import torch
        kept = []
        def step(number):
            kept.append(torch.zeros(5_000).share_memory_())
        """
    message = run(source, tmp_path)[0]
    assert message.startswith("program.kept (list, ") and "program.py:5) grows: " in message
