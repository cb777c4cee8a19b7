"""Known leak patterns, with the evidence that identifies each and the fix.

A wrong fix is worse than none. A pattern therefore needs a confidence of at least `CONFIDENCE`: the share of
the newest entries of the growing container that show it. If code already removes entries from the container,
the fix is never to remove entries.
"""

import collections
import functools
import gc
import re
import sys
import tomllib
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .code_lines import Lines, is_library
from .graph_holders import GraphHolder, grad_fn
from .readers import type_attribute
from .storages import is_tensor, logical_bytes, shape_of, storage_of

CONFIDENCE = 0.8
# Entries that are examined.
_NEWEST = 256
# A view pins an array if its whole storage is at least this many times larger.
_PINNED = 2.0
# The registries of torch's modules, tensors and optimizers. Programs may have attributes with similar names.
_KINDS = "forward|backward|non_full_backward|state_dict|load_state_dict|optimizer|post_accumulate_grad"
_HOOKS = re.compile(rf"\._(global_)?({_KINDS})(_\w+)?_hooks(_\w+)?$")
_WARNINGS = ".__warningregistry__"
_REGISTRATIONS = (
    *("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_hook"),
    *("register_post_accumulate_grad_hook", "register_step_post_hook", "register_step_pre_hook"),
)
_CALLBACK = (".__self__", ".<closure ", ".<default ", ".args", ".keywords", ".func")
_CALLABLES = (types.FunctionType, types.MethodType, functools.partial)
# From a wrapper to its function, there are a tuple, a cell and perhaps a list.
_WRAPPERS = 5
_OF_QUEUES = "put", "put_nowait", "get", "get_nowait", "full"
# Signals store a callback in a tuple with its sender.
_IN_TUPLES = re.compile(r"\[\*\]\[\*\]\.(__self__|<closure |<default )")
_LONGEST_KEY = 80
_NUMBER = re.compile(r"\d+")


class Evidence(NamedTuple):
    """A growing container or attribute, with its surroundings. It references objects of the program."""

    path: str
    """Path to the container or attribute."""
    inner: str
    """The rest of the path, from the container to the memory."""
    wrapper: Any
    """The queue or the cached function that contains the container, or `None`."""
    container: Any | None
    """`None` if no container on the path has gained entries."""
    lines: Lines
    graph: GraphHolder | None
    """The autograd graph that the path keeps alive."""
    is_pinned: bool
    """Whether the graph's oldest node is the same as before."""
    value: Any
    """The object at the end of the path."""


class Advice(NamedTuple):
    """The effect of a pattern, and its fix, as parts of a sentence."""

    effect: str
    fix: str
    confidence: float = 1.0


class Resource(NamedTuple):
    """A class with objects that hold memory, files or threads until they are closed."""

    module: str
    name: str
    owner: str
    noun: str
    advice: Advice
    calls: tuple[str, ...]
    """Functions that create or register the objects."""

    def kind(self) -> type | None:
        """Return the class, or `None` if its module is not imported."""
        module = sys.modules.get(self.module)
        found = None if module is None else vars(module).get(self.name)
        return found if isinstance(found, type) else None


RESOURCES = (
    Resource(
        *("matplotlib.backend_bases", "FigureManagerBase", "pyplot", "figure"),
        Advice("keeps every figure open", "Call plt.close(figure) after the last use."),
        ("figure", "subplots"),
    ),
    Resource(
        *("tensorboard.summary.writer.event_file_writer", "_AsyncWriterThread", "TensorBoard", "writer"),
        Advice(
            "keeps a thread and a file for each writer", "Create one SummaryWriter, or call writer.close()."
        ),
        ("SummaryWriter",),
    ),
    Resource(
        *("logging", "Handler", "logging", "handler"),
        Advice("keeps every handler", "Add it once, or call removeHandler(handler) and handler.close()."),
        ("addHandler",),
    ),
    Resource(
        *("mmap", "mmap", "mmap", "map"),
        Advice("keeps every map open", "Map the file once and reuse the map, or close each map."),
        ("mmap", "memmap"),
    ),
    # Not tested on a GPU.
    Resource(
        *("torch.cuda.graphs", "CUDAGraph", "torch.cuda", "CUDA graph"),
        Advice("keeps a private memory pool for each graph", "Capture each shape once and replay its graph."),
        ("CUDAGraph",),
    ),
)


def resource_of(container: Any) -> Resource | None:
    """Return the resource whose objects are the entries of a container, or `None`."""
    values = newest(container)[1]
    for each in RESOURCES:
        kind = each.kind()
        if kind is not None and _share(issubclass(type(value), kind) for value in values) >= CONFIDENCE:
            return each
    return None


def advice_for(evidence: Evidence) -> Advice | None:
    """Return the effect and fix of the first pattern with enough confidence, or `None`."""
    found = (pattern(evidence) for pattern in _PATTERNS)
    return next((each for each in found if each is not None and each.confidence >= CONFIDENCE), None)


def known_leak(owner: str) -> Advice | None:
    """Return the known leak of an installed library in a global variable, or `None`."""
    for leak in tomllib.loads(Path(__file__).with_name("known_leaks.toml").read_text())["leak"]:
        with suppress(PackageNotFoundError):
            found = version(leak["package"]) if owner.startswith(tuple(leak["owners"])) else ""
            since, now, until = (_counter_of(each)[1] for each in (leak["since"], found, leak["until"]))
            if since <= now <= until:
                return Advice(f"is a known leak of {leak['package']} {found}", leak["fix"])
    return None


def newest(container: Any) -> tuple[list[Any], list[Any]]:
    """Return the newest keys and values of a container, without running code of a subclass.

    Only a dict has keys.
    """
    kind, values = type(container), []
    # Another thread may change the container.
    with suppress(RuntimeError):
        if issubclass(kind, dict):
            pairs = [*islice(reversed(dict.items(container)), _NEWEST)][::-1]
            return [key for key, _ in pairs], [value for _, value in pairs]
        for base in (list, tuple):
            if issubclass(kind, base):
                values = [*base.__getitem__(container, slice(-_NEWEST, None))]
        if issubclass(kind, collections.deque):
            values = [*islice(collections.deque.__reversed__(container), _NEWEST)][::-1]
        if issubclass(kind, set):
            values = [*islice(set.__iter__(container), _NEWEST)]
    return [], values


def is_queue(value: Any) -> bool:
    """Return whether an object is a queue: it has the methods of the standard library's queues."""
    spaces = [type_attribute(each, "__dict__") for each in type_attribute(type(value), "__mro__")]
    return all(any(name in space for space in spaces) for name in _OF_QUEUES)


def _share(found: Iterable[bool]) -> float:
    """Return the share of true values, or 0 if there are no values."""
    values = [*found]
    return sum(values) / len(values) if values else 0.0


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors and arrays of an entry: itself, or its own entries."""
    if is_tensor(value) or issubclass(type(value), np.ndarray):
        yield value
    elif issubclass(type(value), (dict, list, tuple)):
        yield from (
            each for each in newest(value)[1] if is_tensor(each) or issubclass(type(each), np.ndarray)
        )


def _has_graph(value: Any) -> bool:
    return any(is_tensor(each) and grad_fn(each) is not None for each in _leaves(value))


def is_cache(value: Any) -> bool:
    """Return whether an object is a function with `functools.lru_cache`."""
    return issubclass(type(value), functools._lru_cache_wrapper)


def cached_code(cache: Any) -> types.CodeType | None:
    """Return the code of a function with `lru_cache`, or `None` if it is not a Python function."""
    found = (each for each in gc.get_referents(cache) if type(each) is types.FunctionType)
    return next((each.__code__ for each in found), None)


def callback_code(container: Any) -> types.CodeType | None:
    """Return the code of the program's function in the newest entry of a container, or `None`.

    Libraries wrap functions in objects, tuples or other functions.
    """
    entry = newest(container)[1][-1:]
    level = [each for each in (*entry, *gc.get_referents(*entry)) if issubclass(type(each), _CALLABLES)]
    seen = set[int]()
    for _ in range(_WRAPPERS):
        level = [each for each in level if id(each) not in seen][:_NEWEST]
        seen.update(map(id, level))
        for each in level:
            if type(each) is types.FunctionType and not is_library(each.__code__.co_filename):
                return each.__code__
        # The globals of a function lead to the whole program.
        level = [
            each
            for each in gc.get_referents(*level)
            if not issubclass(type(each), (dict, type, types.ModuleType))
        ]
    return None


def filling_calls(path: str) -> tuple[str, ...]:
    """Return the functions of a library that add to the container at a path, or ()."""
    if path.endswith(_WARNINGS):
        return ("warn", "warn_explicit")
    return _REGISTRATIONS if _HOOKS.search(path) else ()


def _hooks(evidence: Evidence) -> Advice | None:
    # Libraries on top of torch store their hooks in the same way, by the number of a handle.
    is_named = type(evidence.container) is collections.OrderedDict and evidence.path.endswith("_hooks")
    numbers, hooks = newest(evidence.container) if is_named else ([], [])
    is_registry = all(type(each) is int for each in numbers) and _are_callables(hooks)
    if evidence.container is None or not (is_registry or _HOOKS.search(evidence.path)):
        return None
    fix = "Keep the handle that the registration returns, and call handle.remove()."
    return Advice("gains hooks that are never removed", fix)


def _warnings(evidence: Evidence) -> Advice | None:
    if not evidence.path.endswith(_WARNINGS):
        return None
    return Advice("remembers every different warning", "Warn with a text that does not change.")


def _cache(evidence: Evidence) -> Advice | None:
    cache = evidence.wrapper
    if not is_cache(cache) or functools._lru_cache_wrapper.cache_info(cache).maxsize is not None:
        return None
    # Other dictionaries of the cached function have the same path.
    stored = max((each for each in gc.get_referents(cache) if type(each) is dict), key=len, default={})
    effect, keys = "never forgets a result", newest(stored)[0]
    if _share(map(_holds_tensor, keys)) >= CONFIDENCE:
        effect = "keeps every argument and result, and never finds a tensor again"
        return Advice(effect, "Do not cache by tensor: tensors are hashed by identity.")
    code = cached_code(cache)
    objects = {id(key[0]) for key in keys if type(key) is tuple and key}
    is_method = code is not None and code.co_varnames[:1] == ("self",)
    if is_method and len(objects) >= CONFIDENCE * len(keys):
        return Advice("keeps every `self`", "Cache in an attribute of the object, not in the class.")
    return Advice(effect, "Set maxsize, e.g. @lru_cache(maxsize=128).")


def _holds_tensor(key: Any) -> bool:
    """Return whether a key of `lru_cache` is a tensor, or contains one."""
    held = key if issubclass(type(key), (tuple, list)) else (key,)
    return any(is_tensor(each) for each in held)


def _exceptions(evidence: Evidence) -> Advice | None:
    if ".<traceback " not in evidence.inner:
        return None
    # Without a container, the holder is a single exception.
    values = [evidence.value] if evidence.container is None else newest(evidence.container)[1]
    share = _share(issubclass(type(each), BaseException) for each in values)
    effect = "keeps the local variables of the frames in every traceback"
    return Advice(effect, "Store str(error) or traceback.format_exc().", share)


def _callbacks(evidence: Evidence) -> Advice | None:
    if evidence.lines.removed or not any(step in evidence.inner for step in _CALLBACK):
        return None
    values = newest(evidence.container)[1]
    if _IN_TUPLES.match(evidence.inner) and all(type(each) is tuple for each in values):
        values = [
            max(each, key=lambda part: issubclass(type(part), _CALLABLES), default=None) for each in values
        ]
    if _share(issubclass(type(each), types.MethodType) for each in values) >= CONFIDENCE:
        effect, fix = "keeps the object of every bound method", "Store weakref.WeakMethod(callback)"
        return Advice(effect, f"{fix}, or remove the callback with its owner.")
    fix = "Remove each callback after its last call."
    return Advice("keeps the variables of every closure", fix) if _are_callables(values) else None


def _are_callables(values: list[Any]) -> bool:
    return _share(issubclass(type(each), _CALLABLES) for each in values) >= CONFIDENCE


def _losses(evidence: Evidence) -> Advice | None:
    if evidence.graph is None or evidence.container is None:
        return None
    values = newest(evidence.container)[1]
    share = _share(map(_has_graph, values))
    tensors = [leaf for each in values for leaf in _leaves(each) if is_tensor(leaf)]
    is_scalar = all(shape_of(each) == () for each in tensors)
    fix = "Store loss.item() or loss.detach()." if is_scalar else "Store tensor.detach()."
    return Advice("keeps every autograd graph alive", fix, share)


def _state(evidence: Evidence) -> Advice | None:
    if evidence.graph is None or evidence.container is not None or not evidence.is_pinned:
        return None
    is_scalar = is_tensor(evidence.value) and shape_of(evidence.value) == ()
    fix = "Add loss.item() or loss.detach()." if is_scalar else "Store state.detach()."
    return Advice("keeps the autograd graph of every earlier step alive", fix)


def _queues(evidence: Evidence) -> Advice | None:
    if is_queue(evidence.wrapper):
        return Advice("is filled faster than it is read", "Limit it: Queue(maxsize=N).")
    is_deque = issubclass(type(evidence.container), collections.deque)
    if not is_deque or evidence.lines.removed:
        return None
    return Advice("has no maximum length", "Limit it: deque(maxlen=N).")


def _by_counter(evidence: Evidence) -> Advice | None:
    """Match a dict with increasing numbers as keys, such as episodes or steps."""
    if not issubclass(type(evidence.container), dict) or evidence.lines.removed:
        return None
    keys, _ = newest(evidence.container)
    numbers = [_counter_of(key) for key in keys]
    share = _share(one[0] == two[0] and one[1] < two[1] for one, two in pairwise(numbers))
    fix = "Delete each entry after its last use, such as with pop(key)."
    return Advice("keeps an entry for every number ever used as a key", fix, share)


def _counter_of(key: Any) -> tuple[str, list[int]]:
    """Return the text around the numbers in a key, and the numbers, or ("", []) for other keys."""
    if type(key) is int:
        return "", [key]
    numbers = _NUMBER.findall(key) if type(key) is str and len(key) < _LONGEST_KEY else []
    return (_NUMBER.sub("#", key), [*map(int, numbers)]) if numbers else ("", [])


def _views(evidence: Evidence) -> Advice | None:
    """Match views that keep larger arrays alive. Views that together cover their array do not match."""
    shown: dict[Any, float] = {}
    whole: dict[Any, int] = {}
    tensors = 0
    values, partly = newest(evidence.container)[1], set[Any]()
    for index, value in enumerate(values):
        for leaf in _leaves(value):
            storage = storage_of(leaf)
            if storage is not None:
                tensors += is_tensor(leaf)
                shown[storage.key] = shown.get(storage.key, 0.0) + logical_bytes(leaf)
                whole[storage.key] = storage.nbytes
                # Entries that are not examined may show the rest of the array of the oldest examined one.
                if index == 0 and len(values) == _NEWEST:
                    partly.add(storage.key)
    share = _share(whole[key] >= _PINNED * shown[key] for key in whole.keys() - partly)
    fix = "Store view.clone()." if tensors else "Store view.copy()."
    return Advice("keeps a whole array for every small view", fix, share)


_PATTERNS: tuple[Callable[[Evidence], Advice | None], ...] = (
    *(_hooks, _warnings, _cache, _exceptions, _callbacks, _losses, _state, _queues, _by_counter, _views),
)
