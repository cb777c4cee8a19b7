"""Describe the holder of growing memory as a developer would write it: `Agent.diary`, its file and line."""

import atexit
import collections
import functools
import logging
import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..pytorch import TORCH
from ..texts import count_text
from .code_lines import Lines, calls_of, is_of_the_user, lines_of, passing_lines
from .graph_holders import GraphHolder
from .growth import LEAST_OBJECTS, Cause, Heap, growing_container
from .patterns import (
    CONFIDENCE,
    RESOURCES,
    Evidence,
    advice_for,
    cached_code,
    callback_code,
    filling_calls,
    is_cache,
    is_queue,
    known_leak,
    newest,
    resource_of,
)
from .readers import dictionary_getter, type_name

# Instances of these are parts of the object that has them as attributes.
_PARTS = (dict, list, tuple, set, frozenset, collections.deque, np.ndarray, BaseException, type)
_STEP = re.compile(r"[.\[]|$")
# An index or a key, a closure's variable, or an identifier.
_NAME = re.compile(r"\[[^\]]*\]|<\w+ (\w+)>|(\w+)")
# The container of a queue or a cached function.
_INSIDE = re.compile(r"\._?queue$|\.<cache>(\[\*\])?$")
_FIELD = re.compile(r"\.<[\w.]+ \*>")
# A variable of a waiting function has a short name, whatever path led to the function.
_WAITING = re.compile(r".*\.<local (\w+):([^>]+)>")
# The links of a linked list.
_REPEATED = re.compile(r"((?:[.\[][^.\[]*)+?)\1{4,}(?!\w)")
_LAST_KEY = re.compile(r"\[('[^']*')\]$")
_NOUNS: tuple[tuple[Any, str], ...] = (
    (np.ndarray, "array"),
    (BaseException, "exception"),
    (types.FunctionType, "function"),
    (types.MethodType, "bound method"),
    (types.FrameType, "frame"),
    (str, "string"),
    ((int, float), "number"),
)
CREATE_GRAPH_CYCLE = "a create_graph cycle"
_ATEXIT = "atexit"
_CALLABLE = re.compile(r"<(method|function|partial) that nothing names>$")
_USUAL_KEYS = ("string", "number", "tuple object")


class _Start(NamedTuple):
    """Where the name of a holder begins."""

    path: str
    """Path of the innermost object whose class is part of the program, or ""."""
    kind: type | None
    """Its class."""
    module: str | None
    """Module of the global or class, if there is no such object."""
    function: str | None
    """Function of the variable, if there is no such object."""


class Owners:
    """Describes paths of one measurement. It references objects of the program, so drop it after use.

    Args:
        objects: The newest object at each pattern of a path.
        entries: The containers of this measurement, by pattern.
        calls: The number of coroutines and generators, by `calls of <function>`.
        before: The reference measurement.
    """

    def __init__(
        self, objects: Mapping[str, Any], entries: Mapping[str, int], calls: Mapping[str, int], before: Heap
    ) -> None:
        self._objects, self._entries, self._calls, self._before = objects, entries, calls, before

    def cause_of(self, path: str, graph: GraphHolder | None = None) -> Cause:
        """Describe the holder at a path, or the holder of the given autograd graph."""
        nameless = self._nameless_cause(path)
        if nameless is not None:
            return nameless
        parts = [path[: step.start()] for step in _STEP.finditer(path)]
        chain = {part: self._objects[part] for part in parts if part in self._objects}
        place = growing_container(path, self._before.entries, self._entries)
        container = None if place is None else self._objects[place]
        # The traceback of a single exception grows each time the exception is raised.
        place = path.partition(".<traceback ")[0] if place is None else place
        waiting = _WAITING.match(place)
        inner = 0 if waiting is None else waiting.end()
        outer = {part: value for part, value in chain.items() if inner <= len(part) <= len(place)}
        # Developers see a queue or a cached function, not the container inside.
        inside = _INSIDE.search(place)
        shown = place[: inside.start()] if inside else place
        wrapper = chain.get(shown)
        if not (is_queue(wrapper) or is_cache(wrapper)):
            shown, wrapper = place, None
        # Developers see a table, not the fields of the C objects inside.
        shown = shown[:inner] + _FIELD.split(shown[inner:])[0] if container is None else shown
        start = _start_of(outer, shown)
        full = shown
        if waiting is not None and start.kind is None:
            shown = f"frame {waiting[1]} {waiting[2]}{shown[inner:]}"
            start = _start_of({}, shown)
        lines = _lines_of(start, shown)
        earlier = {each.pattern: each.oldest_sequence for each in self._before.graphs.holders}
        is_pinned = graph is not None and earlier.get(graph.pattern) == graph.oldest_sequence
        value = chain.get(place)
        evidence = Evidence(place, path[len(place) :], wrapper, container, lines, graph, is_pinned, value)
        advice, places = advice_for(evidence), lines.growth
        resource = resource_of(container)
        if resource is not None:
            advice, places = resource.advice, calls_of(resource.calls) or places
        elif is_cache(wrapper):
            code = cached_code(wrapper)
            places = (f"{code.co_filename}:{code.co_firstlineno}",) if code is not None else places
        else:
            places = calls_of(filling_calls(place)) or places
        code = None if places else callback_code(container)
        places = places if code is None else passing_lines(code)
        details = self._contents(container, place, wrapper)
        owner = _REPEATED.sub(r"\1", _owner(start, shown))
        for part, each in outer.items():
            if issubclass(type(each), logging.Logger):
                # A logger is known by its name, and reachable from every other logger.
                own = dictionary_getter(type(each))
                owner = f"logging.getLogger({own and own.__get__(each).get('name')!r}){full[len(part) :]}"
        calls = f"calls of {start.function}"
        if self._calls.get(calls, 0) - self._before.resources.get(calls, 0) >= LEAST_OBJECTS:
            # Each call has its own variable, and more and more calls wait.
            details, advice = (count_text(self._calls[calls], "waiting call"),), None
        advice = known_leak(owner) or advice
        return Cause(owner, place, details, *((advice.effect, advice.fix) if advice else ("", "")), places)

    def _nameless_cause(self, path: str) -> Cause | None:
        """Describe a known holder in C or C++, or return `None` for any other path."""
        place = f"{path.partition('>')[0]}>"
        callbacks = atexit._ncallbacks()
        more = callbacks - self._before.resources.get(_ATEXIT, callbacks)
        if _CALLABLE.match(place) and more >= LEAST_OBJECTS:
            effect, details = "keeps every callback", (count_text(callbacks, "callback"),)
            fix = "Call atexit.unregister(callback), or register a weakref.WeakMethod."
            return Cause(_ATEXIT, place, details, effect, fix, calls_of(("register",)))
        if CREATE_GRAPH_CYCLE in place:
            effect = "is in a cycle with its gradient"
            fix = "Use torch.autograd.grad, or set each grad to None after its last use."
            return Cause(place, place, (), effect, fix, calls_of(("backward",)))
        return None

    def _contents(self, container: Any, place: str, wrapper: Any) -> tuple[str, ...]:
        """Return the type of the container, and the number and kind of its entries."""
        if container is None:
            return ()
        if is_cache(wrapper):
            size = functools._lru_cache_wrapper.cache_info(wrapper).currsize
            return "lru_cache", count_text(size, "result")
        keys, values = newest(container)
        shown = container if wrapper is None else wrapper
        count, by = count_text(self._entries[place], _noun(values or keys)), _noun(keys)
        # Keys that hash by identity, such as tensors, are never found again.
        return type_name(type(shown)), f"{count} by {by}" if keys and by not in _USUAL_KEYS else count


def resource_causes(objects: Sequence[Any], before: Heap | None) -> tuple[dict[str, int], dict[str, Cause]]:
    """Count the objects of the classes in `RESOURCES`, and describe those with more objects than before."""
    kinds = {id(type(each)): type(each) for each in objects}
    times = collections.Counter(id(type(each)) for each in objects)
    counts, causes = dict[str, int](), dict[str, Cause]()
    for each in RESOURCES:
        kind = each.kind()
        if kind is None:
            continue
        found = (number for number, other in kinds.items() if issubclass(other, kind))
        count = counts[each.owner] = sum(times[number] for number in found)
        if before is not None and count > before.resources.get(each.owner, 0):
            details, places = (count_text(count, each.noun),), calls_of(each.calls)
            effect, fix = each.advice.effect, each.advice.fix
            causes[each.owner] = Cause(each.owner, each.owner, details, effect, fix, places)
    # atexit counts its callbacks, but does not list them.
    return counts | {_ATEXIT: atexit._ncallbacks()}, causes


def _noun(values: list[Any]) -> str:
    """Return the name of the most frequent kind of entry, or "object" if they differ too much."""
    names = collections.Counter(map(_noun_of, values)).most_common(1)
    return names[0][0] if names and names[0][1] >= CONFIDENCE * len(values) else "object"


def _noun_of(value: Any) -> str:
    kind = type(value)
    nouns = ((TORCH.Tensor, "tensor"), (TORCH.Module, "module"), *_NOUNS)
    known = next((noun for base, noun in nouns if issubclass(kind, base)), None)
    return known or f"{type_name(kind)} object"


def _start_of(chain: Mapping[str, Any], shown: str) -> _Start:
    """Return where the name of a holder begins: the innermost object whose class is part of the program."""
    for part, value in reversed([*chain.items()]):
        kind = type(value)
        if len(part) < len(shown) and not issubclass(kind, (TORCH.Tensor, *_PARTS)) and is_of_the_user(kind):
            return _Start(part, kind, None, None)
    root, _, rest = shown.partition(" ")
    if root == "frame":
        return _Start("", None, None, rest.partition(" ")[0])
    parts = [rest[: step.start()] for step in _STEP.finditer(rest)] if root in ("module", "class") else []
    module = max((part for part in parts if part in sys.modules), key=len, default=None)
    return _Start("", None, module, None)


def _owner(start: _Start, shown: str) -> str:
    """Return the name of a holder, such as `Agent.diary`, `train.HISTORY` or `losses in learn()`."""
    if start.kind is not None:
        return f"{type_name(start.kind)}{shown[len(start.path) :]}"
    root, _, rest = shown.partition(" ")
    if start.function is not None:
        return f"{rest.removeprefix(start.function).lstrip()} in {start.function}()"
    if start.module is None:
        return shown
    name = rest[len(start.module) + 1 :]
    if root == "class":
        return name
    # Users know the name of their script, not `__main__`.
    return f"{Path(sys.argv[0]).stem if start.module == '__main__' else start.module}.{name}"


def _lines_of(start: _Start, shown: str) -> Lines:
    """Return the lines of code that change a holder.

    Without such a line, a library contains the holder. The lines that then count are those that add to the
    innermost object that the program can change, such as `replay` for `replay._storage`.
    """
    path = shown[len(start.path) :] if start.kind is not None else shown
    if start.function or start.module:
        # The words `frame` and `module` and the name behind them are not names of objects.
        path = shown.partition(" ")[2].removeprefix(start.function or start.module or "") or shown
    names = [each[1] or each[2] for each in _NAME.finditer(path) if each[1] or each[2]]
    key = _LAST_KEY.search(path)
    found = lines_of(names[-1], start.kind, start.module, start.function, key[1] if key else "")
    # An attribute of a namespace such as `app.state` is an entry of its dictionary.
    outer = [*filter(None, [key and key[1].strip("'")]), *reversed(names[:-1])]
    for name in () if found.added or found.assigned else outer:
        lines = lines_of(name, start.kind, start.module, start.function)
        if lines.added or lines.assigned:
            return lines._replace(removed=found.removed)
    return found
