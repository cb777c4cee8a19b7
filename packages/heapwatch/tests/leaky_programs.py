"""Small programs that leak in a known way.

Each program has a function `step`. A comment `# grows` marks the line that a report must show.
"""

from typing import NamedTuple


class Leak(NamedTuple):
    """A program, and what the report must contain in addition to the marked line."""

    owner: str | tuple[str, ...]
    fix: str
    source: str


LEAKS = {
    "losses with graph": Leak(
        "Agent.diary (list, ",
        "Store loss.item() or loss.detach().",
        """
        import torch
        class Agent:
            def __init__(self):
                self.net, self.diary = torch.nn.Linear(64, 64), []
            def learn(self):
                loss = self.net(torch.randn(64, 64)).tanh().square().mean()
                self.diary.append(loss)  # grows
        agent = Agent()
        def step(number):
            agent.learn()
        """,
    ),
    "losses that share nodes with the output of the step": Leak(
        "Agent.diary (list, ",
        "Store loss.item() or loss.detach().",
        """
        import torch
        class Agent:
            def __init__(self):
                self.net, self.output, self.diary = torch.nn.Linear(64, 64), None, []
            def learn(self):
                self.output = self.net(torch.randn(64, 64)).tanh()
                self.diary.append(self.output.square().mean())  # grows
        agent = Agent()
        def step(number):
            agent.learn()
        """,
    ),
    "undetached state": Leak(
        "Memory.state ",
        "Store state.detach().",
        """
        import torch
        class Memory(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = torch.nn.GRUCell(16, 16)
                self.state = torch.zeros(64, 16)
            def forward(self, seen):
                self.state = self.cell(seen, self.state)  # grows
                return self.state
        memory = Memory()
        def step(number):
            memory(torch.randn(64, 16))
        """,
    ),
    "a running average with its graph": Leak(
        "program.stats['loss'] ",
        "Add loss.item() or loss.detach().",
        """
        import torch
        net = torch.nn.Linear(64, 64)
        stats = {"loss": torch.zeros(())}
        def step(number):
            stats["loss"] += net(torch.randn(64, 64)).tanh().square().mean()  # grows
        """,
    ),
    "hooks": Leak(
        "program.net._forward_hooks (OrderedDict, ",
        "call handle.remove().",
        """
        import torch
        net = torch.nn.Linear(8, 8)
        def step(number):
            seen = torch.zeros(10_000)
            net.register_forward_hook(lambda *_: seen.add_(1))  # grows
        """,
    ),
    "hooks of a class that is not a module": Leak(
        "Convolution._propagate_hooks (OrderedDict, ",
        "call handle.remove().",
        """
        import collections
        import torch
        from torch.utils.hooks import RemovableHandle
        class Convolution:
            def __init__(self):
                self._propagate_hooks = collections.OrderedDict()
            def register_propagate_hook(self, hook):
                handle = RemovableHandle(self._propagate_hooks)
                self._propagate_hooks[handle.id] = hook  # grows
                return handle
        convolution = Convolution()
        def step(number):
            seen = torch.zeros(10_000)
            convolution.register_propagate_hook(lambda *_: seen.add_(1))
        """,
    ),
    "lru_cache on a method": Leak(
        "Level.distances (lru_cache, ",
        "Cache in an attribute of the object, not in the class.",
        """
        import functools
        import numpy as np
        class Level:
            def __init__(self):
                self.tiles = np.ones(40_000, np.uint8)
            @functools.cache  # grows
            def distances(self, start):
                return self.tiles[:10].copy()
        def step(number):
            Level().distances(0)
        """,
    ),
    "lru_cache on a method of one object": Leak(
        "Level.distances (lru_cache, ",
        "Set maxsize, e.g. @lru_cache(maxsize=128).",
        """
        import functools
        import numpy as np
        class Level:
            @functools.cache  # grows
            def distances(self, start):
                return np.ones(40_000, np.uint8)
        level = Level()
        def step(number):
            level.distances(number)
        """,
    ),
    "lru_cache of tensors": Leak(
        "program.features (lru_cache, ",
        "Do not cache by tensor",
        """
        import functools
        import torch
        @functools.lru_cache(maxsize=None)  # grows
        def features(image):
            return image * 2
        def step(number):
            features(torch.zeros(5_000))
        """,
    ),
    "exceptions": Leak(
        "program.errors (list, ",
        "Store str(error) or traceback.format_exc().",
        """
        import numpy as np
        errors = []
        def load(number):
            frame = np.ones(40_000, np.uint8)
            raise ValueError(f"bad frame {number}: {frame[0]}")
        def step(number):
            try:
                load(number)
            except ValueError as error:
                errors.append(error)  # grows
        """,
    ),
    "bound methods": Leak(
        "Bus.listeners (list, ",
        "weakref.WeakMethod(callback)",
        """
        import numpy as np
        class Listener:
            def __init__(self):
                self.window = np.ones(40_000, np.uint8)
            def on_step(self):
                pass
        class Bus:
            def __init__(self):
                self.listeners = []
            def subscribe(self, listener):
                self.listeners.append(listener)  # grows
        bus = Bus()
        def step(number):
            bus.subscribe(Listener().on_step)
        """,
    ),
    "closures": Leak(
        "program.at_end (list, ",
        "Remove each callback after its last call.",
        """
        import numpy as np
        at_end = []
        def step(number):
            frame = np.ones(40_000, np.uint8)
            at_end.append(lambda: frame.sum())  # grows
        """,
    ),
    "dict keyed by episode": Leak(
        "Recorder.episodes (dict, ",
        "Delete each entry after its last use",
        """
        import numpy as np
        class Recorder:
            def __init__(self):
                self.episodes = {}
            def record(self, episode, frame):
                self.episodes.setdefault(episode, []).append(frame)  # grows
        recorder = Recorder()
        def step(number):
            recorder.record(number, np.ones(40_000, np.uint8))
        """,
    ),
    "unbounded deque": Leak(
        "Replay.frames (deque, ",
        "deque(maxlen=N)",
        """
        from collections import deque
        import numpy as np
        class Replay:
            def __init__(self):
                self.frames = deque()
            def add(self, frame):
                self.frames.append(frame)  # grows
        replay = Replay()
        def step(number):
            replay.add(np.ones(40_000, np.uint8))
        """,
    ),
    "a deque that is filled outside its class": Leak(
        "Replay.frames (deque, ",
        "deque(maxlen=N)",
        """
        from collections import deque
        import numpy as np
        class Replay:
            def __init__(self):
                self.frames = deque()
        replay = Replay()
        def pair(frame):
            frames = [frame]
            frames.append(frame)
            return frames
        def step(number):
            frame, _ = pair(np.ones(40_000, np.uint8))
            replay.frames.append(frame)  # grows
        """,
    ),
    "unbounded queue": Leak(
        "program.pictures (Queue, ",
        "Queue(maxsize=N)",
        """
        import queue
        import numpy as np
        pictures = queue.Queue()
        def step(number):
            for _ in range(2):
                pictures.put(np.ones(20_000, np.uint8))  # grows
            pictures.get()
        """,
    ),
    "views": Leak(
        "program.first_rows (list, ",
        "Store view.copy().",
        """
        import numpy as np
        first_rows = []
        def step(number):
            batch = np.ones((40, 1_000), np.uint8)
            first_rows.append(batch[0])  # grows
        """,
    ),
    "logging handlers": Leak(
        "logging.getLogger('program').handlers (list, ",
        "call removeHandler(handler) and handler.close()",
        """
        import logging
        import logging.handlers
        log = logging.getLogger("program")
        log.propagate = False
        def step(number):
            log.addHandler(logging.handlers.BufferingHandler(10_000))  # grows
            log.warning("x" * 40_000)
        """,
    ),
    "log files": Leak(
        "logging (",
        "call removeHandler(handler) and handler.close()",
        """
        import logging
        import os
        log = logging.getLogger("program")
        log.propagate = False
        def step(number):
            log.addHandler(logging.FileHandler(os.devnull))  # grows
        """,
    ),
    "figures": Leak(
        # Without its container if most of the memory is native.
        ("Gcf.figs (OrderedDict, ", "pyplot ("),
        "Call plt.close(figure)",
        """
        import matplotlib
        matplotlib.use("agg")
        from matplotlib import pyplot
        def step(number):
            figure = pyplot.figure()  # grows
            figure.text(0.5, 0.5, str(number))
        """,
    ),
    "TensorBoard writers": Leak(
        "TensorBoard (",
        "Create one SummaryWriter",
        """
        import tempfile
        from torch.utils.tensorboard import SummaryWriter
        folder = tempfile.mkdtemp()
        def step(number):
            writer = SummaryWriter(folder)  # grows
            writer.add_scalar("loss", number)
        """,
    ),
    "memory maps": Leak(
        "mmap (",
        "Map the file once",
        """
        import mmap
        import tempfile
        data = tempfile.NamedTemporaryFile()
        data.truncate(1_000_000)
        maps = []
        def step(number):
            maps.append(mmap.mmap(data.fileno(), 0))  # grows
        """,
    ),
}
