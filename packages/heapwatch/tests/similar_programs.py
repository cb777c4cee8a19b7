"""Small programs that resemble known leaks, and get no fix.

Each program has a function `step`.
"""

DECOYS = {
    "arrays in a list": """
        import numpy as np
        kept = []
        def step(number):
            kept.append(np.ones(40_000, np.uint8))
        """,
    "arrays of web hooks": """
        import collections
        import numpy as np
        class Site:
            def __init__(self):
                self.web_hooks = collections.OrderedDict()
        site = Site()
        def step(number):
            site.web_hooks[f"hook {chr(number + 65)}"] = np.ones(40_000, np.uint8)
        """,
    "losses without a graph": """
        import torch
        losses = []
        def step(number):
            losses.append(torch.ones(10_000).detach())
        """,
    "views that together show their array": """
        import numpy as np
        rows = []
        def step(number):
            rows.extend(np.ones((4, 10_000), np.uint8))
        """,
    "all rows of large arrays": """
        import numpy as np
        rows = []
        def step(number):
            rows.extend(np.ones((600, 80), np.uint8))
        """,
    "webhooks of the program itself": """
        import numpy as np
        class Server:
            def __init__(self):
                self._webhooks = []
        server = Server()
        def step(number):
            server._webhooks.append(np.ones(40_000, np.uint8))
        """,
    "a dict by name": """
        import numpy as np
        players = {}
        def step(number):
            players[f"{hash(str(number)):x}"] = np.ones(40_000, np.uint8)
        """,
    "a dict by number that drops some entries": """
        import numpy as np
        episodes = {}
        def step(number):
            episodes[number] = np.ones(40_000, np.uint8)
            if number % 8 == 0:
                episodes.pop(number // 2, None)
        """,
    "a deque that is also read": """
        from collections import deque
        import numpy as np
        waiting = deque()
        def step(number):
            waiting.extend(np.ones((2, 20_000), np.uint8).copy())
            if number % 4 == 0:
                waiting.popleft()
        """,
    "exceptions without a traceback": """
        import numpy as np
        errors = []
        def step(number):
            errors.append(ValueError(np.ones(40_000, np.uint8)))
        """,
    "functions and arrays": """
        import numpy as np
        jobs = []
        def step(number):
            frame = np.ones(40_000, np.uint8)
            jobs.append(lambda: frame)
            jobs.append(frame)
        """,
    "callbacks that are removed": """
        import numpy as np
        pending = []
        def step(number):
            frame = np.ones(20_000, np.uint8)
            for _ in range(2):
                pending.append(lambda: frame.copy())
                frame = frame.copy()
            if number % 4 == 0:
                pending.pop()()
        """,
    "tensors with and without a graph": """
        import torch
        weight = torch.ones(5_000, requires_grad=True)
        results = []
        def step(number):
            results.append(weight * 2)
            results.append(torch.ones(5_000))
        """,
    "an object in a cache": """
        import functools
        import numpy as np
        class Agent:
            def __init__(self):
                self.diary = []
        @functools.lru_cache(maxsize=None)
        def agent():
            return Agent()
        def step(number):
            agent().diary.append(np.ones(40_000, np.uint8))
        """,
    "a handler that keeps its records": """
        import logging
        class Keeper(logging.Handler):
            def __init__(self):
                super().__init__()
                self.records = []
            def emit(self, record):
                self.records.append(record)
        log = logging.getLogger("program")
        log.propagate = False
        log.addHandler(Keeper())
        def step(number):
            log.warning("x" * 40_000)
        """,
    "a dict by number that another class empties": """
        import numpy as np
        class Recorder:
            def __init__(self):
                self.episodes = {}
            def record(self, number):
                self.episodes[number] = np.ones(40_000, np.uint8)
        class Writer:
            def write(self, recorder, number):
                recorder.episodes.pop(number)
        recorder, writer = Recorder(), Writer()
        def step(number):
            recorder.record(number)
        """,
    "modules": """
        import torch
        heads = []
        def step(number):
            heads.append(torch.nn.Linear(100, 100))
        """,
    "a text": """
        class Log:
            text = ""
        log = Log()
        def step(number):
            log.text += "x" * 40_000
        """,
    "a dict by two numbers in any order": """
        import numpy as np
        tiles = {}
        def step(number):
            tiles[f"{number * 37 % 101}_{number}"] = np.ones(40_000, np.uint8)
        """,
    "warnings in a dict of the program": """
        class Checks:
            def __init__(self):
                self._warningregistry = {}
            def warn(self, number):
                self._warningregistry[f"{hash(str(number)):x}"] = "x" * 40_000
        checks = Checks()
        def step(number):
            checks.warn(number)
        """,
    "an exception that gains notes": """
        error = ValueError("bad frame")
        def step(number):
            error.add_note("x" * 40_000)
        """,
    "a callback that an extension never releases": """
        import ctypes
        import numpy as np
        class Connection:
            def __init__(self):
                self.buffer = np.ones(40_000, np.uint8)
            def close(self):
                pass
        def register(callback):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
        def step(number):
            register(Connection().close)
        """,
}
