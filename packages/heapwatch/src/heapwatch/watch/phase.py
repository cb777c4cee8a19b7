"""Find a fixed phase of an unmodified program: after its optimizer's steps, or by a clock."""

import _thread
import ctypes
import gc
import inspect
import logging
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from functools import reduce, wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import UsageError
from ..pytorch import TORCH
from ..texts import with_place

_LOG = logging.getLogger(__name__)
# The clock starts counting after this time, and samples itself if the main thread is blocked for as long.
_SILENT_SECONDS = 2.0
# Another optimizer counts after this many consecutive steps.
_OTHER_STEPS = 200

# Samples at a count. Returns the count before which no further call is needed.
_Sample = Callable[[int], int]
_Call = Callable[[int], None]


class _Tick:
    """A call for the main thread. Testing its truth value makes the call, so that exceptions propagate."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __bool__(self) -> bool:
        _WAITING.discard(self)
        self._call()
        # Zero is the result of a successful pending call.
        return False


# The interpreter keeps only the addresses, so this set keeps the objects alive until they are called.
_WAITING: set[_Tick] = set()


class _Calls:
    """Wraps a function and reports the end of each call."""

    def __init__(self, place: str, tell: Callable[[], None]) -> None:
        self.place = place
        self._replaced: list[tuple[dict[Any, Any], Any]] = []
        module_name, _, path = place.partition(":")
        *owners, self._name = path.split(".")
        repair = "Write it as package.module:function, in a module that the program imports."
        if not all([*module_name.split("."), *owners, self._name]):
            raise UsageError(f"at={place} is not a function. {repair}")
        try:
            owner = reduce(getattr, owners, _imported(module_name))
            # A class attribute is read as it is stored, without binding.
            get = inspect.getattr_static if isinstance(owner, type) else getattr
            self._owner, self._found = owner, get(owner, self._name)
            is_wrapped = isinstance(self._found, (staticmethod, classmethod))
            function = self._found.__func__ if is_wrapped else self._found
            if not inspect.isroutine(function):
                raise TypeError(f"it is of type {type(self._found).__name__}")
            self._is_inherited = self._name not in vars(owner)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise UsageError(f"at={place} is not a function ({error}). {repair}") from error

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                tell()

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            finally:
                tell()

        counted = awaited if inspect.iscoroutinefunction(function) else counted
        self._counted = type(self._found)(counted) if is_wrapped else counted

    def start(self) -> None:
        """Replace the function with its wrapper."""
        setattr(self._owner, self._name, self._counted)
        for held in gc.get_referrers(self._found) if inspect.ismodule(self._owner) else ():
            # A decorator such as `@app.route` stores the function in a dict. A class has `__module__`.
            if type(held) is dict and held is not vars(self) and "__module__" not in held:
                for key, value in [*held.items()]:
                    if value is self._found and key != "__wrapped__":
                        held[key] = self._counted
                        self._replaced.append((held, key))

    def stop(self) -> None:
        """Restore the function."""
        for held, key in self._replaced:
            if held.get(key) is self._counted:
                held[key] = self._found
        self._replaced.clear()
        if self._is_inherited:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._found)


class Phase:
    """Calls `sample` with a count, at a fixed phase of the program, in a thread of the program.

    The count is the number of steps of one optimizer: the first optimizer to step, until it stops stepping.
    Before the first step, which calls `begin`, ticks of a clock are counted. The main thread then samples
    between two of its instructions, but not during an import. While it waits, the clock's thread samples.
    """

    def __init__(self, sample: _Sample, begin: _Call, seconds: float, at: str | None = None) -> None:
        self._sample, self._begin, self._seconds = sample, begin, seconds
        self.is_timed = at is None
        """Whether no optimizer has stepped yet."""
        self.has_failed = False
        """Whether an internal error has ended the counting."""
        self._count = self._next_count = 0
        self._optimizer: Callable[[], Any] = lambda: None
        self._others = 0
        self._created_at = time.monotonic()
        # One entry for each thread that is at a sample.
        self._turns = set[object]()
        self._stopped = threading.Event()
        self._hook: Any = None
        # The clock's thread holds it.
        self._clock = threading.Lock()
        self._pending = _Tick(self._tick)
        self._pid = os.getpid()
        self._calls = None if at is None else _Calls(at, self._count_one)

    def start(self) -> None:
        """Start counting."""
        if self._calls is None:
            self._listen()
            # Programs wait for each thread of `threading.enumerate()`, so it must not list this one.
            _thread.start_new_thread(self._run_clock, ())
        else:
            self._calls.start()

    def stop(self) -> None:
        """Stop counting. The program continues unobserved."""
        self._stopped.set()
        if self._calls is not None:
            self._calls.stop()
            if not self._count:
                repair = "Name a function that your code or a framework calls by its name."
                _LOG.warning("at=%s was never called through its name. %s", self._calls.place, repair)
        elif self._hook is not None:
            self._hook.remove()
        # The clock's thread may be sampling, but a forked child has none. The timeout ends the wait if a
        # finalizer there waits for this thread.
        if os.getpid() == self._pid and self._clock.acquire(timeout=_SILENT_SECONDS):
            self._clock.release()

    def _listen(self) -> None:
        """Count the steps of all optimizers, once the program has imported PyTorch."""
        torch = TORCH.refresh()
        if self._hook is None and torch is not None:
            # Searches of the heap do not follow weak references, so they do not find the data of the watch.
            method = weakref.WeakMethod(self._after_step)
            # A compiled step also calls this hook. A method cannot be disabled for the compiler.
            after_step = torch._disable_dynamo(lambda *given: (call := method()) and call(*given))
            # `torch.optim` does not keep its module as an attribute.
            optimizer = sys.modules["torch.optim.optimizer"]
            self._hook = optimizer.register_optimizer_step_post_hook(after_step)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if optimizer is not self._optimizer():
            self._others += 1
            if self._optimizer() is not None and self._others < _OTHER_STEPS:
                return
            self._optimizer = weakref.ref(optimizer)
        self._others = 0
        if self.is_timed:
            self._guarded(self._begin_steps)
        self._count_one()

    def _count_one(self) -> None:
        self._count += 1
        # This check comes first, because a loop may run 50,000 steps per second.
        if self._count >= self._next_count:
            self._guarded(self._take)

    def _take(self, count: int) -> None:
        self._next_count = self._sample(count)

    def _begin_steps(self, count: int) -> None:
        self.is_timed, self._next_count = False, 0
        self._begin(count)

    def _run_clock(self) -> None:
        asked = 0.0
        with self._clock:
            while self.is_timed and not self._stopped.wait(self._seconds):
                # The program may import PyTorch at any time.
                self._listen()
                if self._pending in _WAITING and time.monotonic() - asked > _SILENT_SECONDS:
                    # The main thread waits in C, such as in `Thread.join`, and makes no call.
                    self._tick(sys._current_frames().get(threading.main_thread().ident or 0))
                    # Finalizers and log records register the thread that they run in.
                    threading._active.pop(threading.get_ident(), None)  # pyright: ignore
                elif self._is_due() and self._pending not in _WAITING:
                    asked = time.monotonic()
                    _WAITING.add(self._pending)
                    api, tick = ctypes.pythonapi, ctypes.py_object(self._pending)
                    if api.Py_AddPendingCall(api.PyObject_IsTrue, tick):
                        # The interpreter's queue of pending calls is full.
                        _WAITING.discard(self._pending)

    def _is_due(self) -> bool:
        """Return whether the clock must count, because no steps are counted."""
        return not self._turns and self.is_timed and time.monotonic() - self._created_at > _SILENT_SECONDS

    def _tick(self, frame: FrameType | None = None) -> None:
        """Sample in the main thread, at a point where it would also handle signals, or while it is blocked.

        `frame` is the main thread's, or `None` for the current one.
        """
        is_ours = self._is_due() and not self._stopped.is_set() and os.getpid() == self._pid
        is_compiling = (torch := TORCH.refresh()) is not None and torch.compiler.is_compiling()
        if is_ours and not is_compiling and not _is_importing(frame or sys._getframe()):
            self._count += 1
            self._guarded(self._take)

    def _guarded(self, call: _Call) -> None:
        """Call once at a time, and stop watching after an error rather than break the program."""
        if self._stopped.is_set():
            return
        turn = object()
        try:
            # This is not a lock: a signal handler could raise between acquiring it and recording that.
            self._turns.add(turn)
            if len(self._turns) == 1:
                call(self._count)
        except Exception as error:
            if any(_handles_signal(frame) for frame, _ in traceback.walk_tb(error.__traceback__)):
                # The error belongs to the program.
                raise
            self.has_failed = True
            self._stopped.set()
            _LOG.exception("internal error in the watch at step %s. The program continues.", self._count)
        finally:
            self._turns.discard(turn)


def find_module(name: str) -> ModuleSpec | None:
    """Return a module's spec, or `None` if it does not exist. Only the enclosing packages are imported.

    Raises:
        ValueError: If the name is empty or has an empty part.
        Exception: Any error raised by an enclosing package.
    """
    found = None
    for part in accumulate(name.split("."), "{}.{}".format):
        if found is not None and found.submodule_search_locations is None:
            # The parent is not a package, and a search in it would run it.
            return None
        found = find_spec(part)
        if found is None:
            return None
    return found


def _imported(name: str) -> Any:
    """Import a module, unless it is the program itself, to avoid running it twice.

    Raises:
        ImportError: If the module is the program, does not exist, or raises.
    """
    found, program = None, sys.argv[0]
    try:
        if name in sys.modules:
            return sys.modules[name]
        found = find_module(name)
        # A module that is not found has no file.
        origin = program if name == program or found is None else found.origin
        if origin is None or Path(origin).resolve() != Path(program).resolve():
            return import_module(name)
    except (Exception, SystemExit) as error:
        raise ImportError(with_place(error)) from error
    is_program = "it is in the program itself, and importing it would run the program again"
    raise ImportError(f"there is no module {name}" if found is None else is_program)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether an import is in progress. Imported code stays in memory."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _handles_signal(frame: FrameType) -> bool:
    """Return whether a frame belongs to a signal handler. Handlers receive the frame they interrupted."""
    names, rest, _, values = inspect.getargvalues(frame)
    others = values.get(rest or "")
    given = [*(values.get(name) for name in names), *(others if isinstance(others, tuple) else ())]
    return frame.f_back is not None and any(each is frame.f_back for each in given)
