"""Compare two measurements of the heap, and describe the holders of the growth."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..texts import count_text, size_text
from .capacity import ALLOCATED, Bound
from .code_lines import excerpt
from .graph_holders import GraphReport

NATIVE = "not seen in Python's heap: native memory of a library or an extension"
TOO_SMALL = "too small to name yet"
LIKELY = "the container that gained most objects"
ELSEWHERE = "not held by the run or by user modules; the whole Python heap is searched next"

_TOP = 3
# The size is read for this many holders with the fastest growth.
_CANDIDATES = 30
# Smaller growth is noise in any run.
_LEAST_BYTES = 20_000
# Other holders are reported only from this share of the largest holder's growth.
_LEAST_SHARE = 0.1
# The size of a graph node without tensors. With torch 2.13, nodes of five networks have 640 to 1,400 bytes.
NODE_BYTES = 700
# Fewer new objects may be a coincidence.
LEAST_OBJECTS = 4
# Below this share of the growth, the holder counts as not found.
_EXPLAINED = 0.2
# Growth counts as filling if less than this share of it lies elsewhere.
_MINOR = 0.2
# Matches the steps of a path into a container.
_STEP_INTO = re.compile(r"\[|\.<\w+ \*>")
# Of nested containers, the outermost counts as growing if it grew by at least this share of the fastest.
_KEEPS_PACE = 0.75
_HOLDER = re.compile(r".*?(?= holds | -> |: |$)")


_Entries = Mapping[str, int]


class Message(NamedTuple):
    """A sentence about a cause of growth, with its fix if it is known."""

    text: str
    fix: str = ""
    owner: str = ""
    path: str = ""
    code: str = ""
    """Source lines around the lines that add to the owner."""
    sizes: tuple[float, ...] = ()
    """Bytes of the owner in both measurements, or () if they are unknown."""

    def __str__(self) -> str:
        return f"{self.text} {self.fix}".rstrip()


class Cause(NamedTuple):
    """What holds growing memory, in the program's own terms, and how to fix it."""

    owner: str
    """Name of the owner, such as `Agent.diary`."""
    path: str
    """Pattern of the path to the container. Everything below it belongs to this cause."""
    details: tuple[str, ...]
    """Container and contents, such as ("list", "1,612 tensors")."""
    effect: str = ""
    fix: str = ""
    """Effect and fix are empty if no known pattern has sufficient confidence."""

    places: tuple[str, ...] = ()
    """Lines that add to the container, such as `/app/agent.py:7`."""

    def message(self, growth: str, sizes: tuple[float, ...] = ()) -> Message:
        """Return the message, with the growth as text."""
        lines = " and ".join(Path(place).name for place in self.places)
        details = ", ".join(filter(None, (*self.details, lines)))
        text = f"{self.owner}{details and f' ({details})'} {self.effect or 'grows'}: {growth}."
        code = "\n\n".join(map(excerpt, self.places))
        return Message(text, self.fix, self.owner, self.path, code, sizes)


@dataclass(frozen=True, slots=True)
class Heap:
    """Bytes of Python objects: their own size, and the memory of their tensors, arrays and buffers."""

    held: dict[str, dict[str, float]]
    """By kind of device ("cpu", "cuda"), then by path. Indices become `[*]`, and small paths are omitted."""
    totals: dict[str, float]
    """By kind of device, including small paths."""
    graphs: GraphReport
    is_whole: bool
    """Whether libraries and unreferenced objects are included."""
    stores: dict[str, Bound]
    """Bounded containers by path. A bound in an owner's code is included only for paths that grew."""
    entries: dict[str, int]
    """Number of entries of the containers on the paths in `held`, by path."""
    causes: dict[str, Cause]
    """By path, for the paths that grew since the reference."""
    resources: dict[str, int]
    """Number of objects of each class that is known for leaks (`patterns.py`), and of files by path."""
    share: float = 1.0
    """Share of the judged steps that lie after the reference."""


@dataclass(frozen=True, slots=True)
class GrowthSources:
    """Holders of the memory that grew."""

    lines: tuple[str, ...]
    """One line with the path of each likely holder, most likely first."""
    is_named: bool = True
    """Whether the lines include a holder, or rule out Python objects with certainty."""
    is_filling: bool = False
    """Whether the largest holder is a container below its capacity."""
    messages: tuple[Message, ...] = ()
    """One sentence for each cause of the growth, with a fix if it is known."""

    @property
    def holder(self) -> str | None:
        """The path of the most likely holder, without numbers, or `None` if unknown."""
        found = _HOLDER.match(self.lines[0]) if self.is_named and self.lines else None
        return None if found is None else found[0]

    @property
    def shown(self) -> tuple[str, ...]:
        """The messages, or the lines without a message."""
        return tuple(map(str, self.messages)) or self.lines


def sources_of(before: Heap, now: Heap, steps: int, rise_bytes: float, device: str = "cpu") -> GrowthSources:
    """Return the holders of the growth between two measurements.

    Args:
        before: Heap when growth was first suspected, or when a holder was last found.
        now: Current heap, measured with `before` as reference.
        steps: Agent steps between the measurements.
        rise_bytes: Growth of the counter that raised the suspicion.
        device: Kind of device whose memory grew, "cpu" or "cuda".

    Returns:
        Native memory is reported only if the whole heap was measured and did not grow. If `before` is not the
        whole heap and does not explain the growth, the only line is `ELSEWHERE`.
    """
    steps = max(1, steps)
    risen = now.totals.get(device, 0.0) - before.totals.get(device, 0.0)
    messages = _Messages(before, now, steps, device)
    lines = _grown_graphs(before, now, steps, max(_LEAST_BYTES, _EXPLAINED * rise_bytes), messages)
    if lines or risen >= _EXPLAINED * rise_bytes:
        held = before.held.get(device, {}), now.held.get(device, {})
        paths = grown_paths(*held, before.entries, now.entries, now.share)
        filling = {path: _filling(path, before, now, steps) for path in paths}
        # Containers that are filling come last.
        named = sorted(paths, key=lambda path: filling[path] is not None)
        for path in named:
            lines.append(filling[path] or f"{path} holds {paths[path] / 1e6:,.2f} MB more")
            messages.add_path(path, filling[path])
        other = sum(paths[path] for path in named if filling[path] is None)
        is_filling = bool(named) and len(lines) == len(named) and other < _MINOR * sum(paths.values())
        found = GrowthSources(tuple(lines), is_filling=is_filling, messages=messages.texts())
        return found if lines else GrowthSources((TOO_SMALL,), is_named=False)
    if rise_bytes < _LEAST_BYTES or not now.is_whole:
        return GrowthSources((TOO_SMALL if rise_bytes < _LEAST_BYTES else ELSEWHERE,), is_named=False)
    part = f"the Python heap grew by {max(risen, 0) / 1e6:.2f} of {rise_bytes / 1e6:.2f} MB"
    messages = *resource_messages(before, now, steps), *_likely_holders(before, now, steps)
    return GrowthSources((f"{NATIVE} ({part})",), messages=messages)


def gained_entries(before: _Entries, now: _Entries, is_holder: Callable[[str], bool]) -> str | None:
    """Return the holder that gained most entries, or `None` if none gained enough."""
    more = {name: now[name] - length for name, length in before.items() if name in now}
    enough = sorted((name for name in more if more[name] >= LEAST_OBJECTS), key=lambda name: -more[name])
    return next(filter(is_holder, enough), None)


def _likely_holders(before: Heap, now: Heap, steps: int) -> Iterator[Message]:
    """Yield a sentence for the container that gained most objects. Their memory may be outside Python."""
    cause = now.causes.get(LIKELY)
    if cause is not None:
        more = now.entries.get(cause.path, 0) - before.entries.get(cause.path, 0)
        number = f"{more:,} more in {count_text(steps, 'step')}"
        yield cause._replace(effect="may hold this memory", fix="").message(number)


def resource_messages(before: Heap, now: Heap, steps: int, least: float = 0.0) -> tuple[Message, ...]:
    """Return a sentence for each class known for leaks with at least `least` more objects than before.

    Fewer than four more objects are never reported.
    """
    more = Counter(now.resources) - Counter(before.resources)
    grown = [name for name in now.causes if more[name] >= max(LEAST_OBJECTS, least)]
    numbers = [f"{more[name]:,} more in {count_text(steps, 'step')}" for name in grown]
    return tuple(now.causes[name].message(number) for name, number in zip(grown, numbers, strict=True))


def resource_sources(
    before: Heap, now: Heap, steps: int, least: float, lines: tuple[str, ...], are_files: bool
) -> GrowthSources:
    """Return the containers below their capacity with at least `least` more files, or else `lines`."""
    more = Counter(now.resources) - Counter(before.resources)
    grown = (_filling(path, before, now, steps) for path in more if are_files and more[path] >= least)
    filling = tuple(filter(None, grown))
    messages = () if filling else resource_messages(before, now, steps, least)
    return GrowthSources(filling or lines, is_filling=bool(filling), messages=messages)


class _Messages:
    """Collects one sentence for each cause. Paths with the same cause are added up."""

    def __init__(self, before: Heap, now: Heap, steps: int, device: str) -> None:
        self._before, self._now, self._steps, self._device = before, now, steps, device
        # Bytes and growth in bytes, by the cause's path.
        self._found: dict[str, tuple[Cause, float, float]] = {}
        self._filling: dict[str, Message] = {}

    def add_graph(self, path: str, nbytes: float, growth: float) -> None:
        """Add an autograd graph. Its tensors count, in addition to the objects on the path."""
        cause = self._now.causes.get(path) or Cause(path, path, ())
        _, size, rate = self._known(cause)
        self._found[cause.path] = cause, size + nbytes, rate + growth / self._steps

    def add_path(self, path: str, filling: str | None) -> None:
        """Add a path, with its fill level if it is filling."""
        cause = self._now.causes.get(path) or Cause(path, path, ())
        known = _, size, rate = self._known(cause)
        if filling is None:
            self._found[cause.path] = known
        else:
            level, filled = filling.partition(" has ")[2], cause._replace(effect="is filling", fix="")
            self._filling[cause.path] = filled.message(level, (size - rate * self._steps, size))

    def texts(self) -> tuple[Message, ...]:
        """Return the sentences, those with the largest lasting growth first."""
        share = self._now.share / self._steps
        found = sorted(self._found.values(), key=lambda each: -min(each[2], each[1] * share))
        # A block of code counts as one step.
        per_step = " per step" if self._steps > 1 else ""
        known = list[Message]()
        for cause, size, rate in found:
            growth = f"{size_text(size)}, {'+' * (rate >= 0)}{size_text(rate)}{per_step}"
            known.append(cause.message(growth, (size - rate * self._steps, size)))
        return tuple([*known, *self._filling.values()][:_TOP])

    def _known(self, cause: Cause) -> tuple[Cause, float, float]:
        """Return a cause with the bytes behind its path, and their growth per step."""
        if cause.path in self._found:
            return self._found[cause.path]
        sizes = [_below(cause.path, heap.held.get(self._device, {})) for heap in (self._before, self._now)]
        return cause, sizes[1], (sizes[1] - sizes[0]) / self._steps


def _below(start: str, held: Mapping[str, float]) -> float:
    """Return the bytes of a path and of everything behind it."""
    behind = (f"{start}[", f"{start}.")
    return sum(size for path, size in held.items() if path == start or path.startswith(behind))


def _grown_graphs(before: Heap, now: Heap, steps: int, least: float, messages: _Messages) -> list[str]:
    """Return the largest new or grown graphs of at least `least` bytes, with their growth."""
    earlier = {} if now.graphs.truncated else {holder.pattern: holder for holder in before.graphs.holders}
    lines = []
    for holder in now.graphs.holders:
        size = holder.nbytes + holder.nodes * NODE_BYTES
        if size < least or len(lines) == _TOP:
            continue
        if holder.pattern not in earlier:
            lines.append(holder.text())
            messages.add_graph(holder.pattern, size, size)
            continue
        growth = holder.growth_since(earlier[holder.pattern], steps)
        if growth.nodes_per_step > 0 or growth.bytes_per_step > 0:
            lines.append(f"{holder.text()}; {growth.text()}")
            more = (growth.bytes_per_step + growth.nodes_per_step * NODE_BYTES) * steps
            messages.add_graph(holder.pattern, size, more)
    return lines


def _filling(path: str, before: Heap, now: Heap, steps: int) -> str | None:
    """Return the fill level of the container at a path, or `None` if it is full or has no capacity."""
    name = max((name for name in now.stores if _lies_in(path, name)), key=len, default=None)
    if name is None:
        return None
    store = now.stores[name]
    known = before.stores.get(name)
    if known is None and store.limit == ALLOCATED:
        return None
    if known is not None:
        if known.limit == store.limit and known.capacity < store.capacity:
            # More and more containers or slots have no common capacity.
            return None
        added = store.held - known.held
    else:
        lengths = [heap.entries.get(name, 0) for heap in (before, now)]
        added = store.held - store.held * lengths[0] / max(1, lengths[1])
    if added <= 0 or store.held >= store.capacity:
        return None
    left = (store.capacity - store.held) * steps / added
    full = f"full in about {count_text(round(left), 'step')}"
    return f"{path}: {name} has {store.held:,} of {store.capacity:,} ({store.limit}), {full}"


def _lies_in(path: str, name: str) -> bool:
    """Return whether a path belongs to a container or to its contents."""
    return path == name or path.startswith((f"{name}[", f"{name}.<key", f"{name}.<cache>["))


def growing_container(path: str, before: _Entries, now: _Entries) -> str | None:
    """Return the container on a path that causes its growth, or `None` if none has gained entries.

    A dict of lists grows with its lists. If it gains one entry while the lists double, the lists are the
    cause.
    """
    rates = dict[str, float]()
    for name in containers(path):
        earlier, length = before.get(name, 0), now.get(name, 0)
        if length > earlier:
            # Containers that were empty cannot be compared, so the outermost of them counts.
            rates[name] = length / earlier if earlier else math.inf
    return next((name for name in rates if rates[name] >= _KEEPS_PACE * max(rates.values())), None)


def containers(path: str) -> list[str]:
    """Return the containers on a path and the path itself, outermost first.

    >>> containers("agent.episodes[*]['obs']")
    ['agent.episodes', 'agent.episodes[*]', "agent.episodes[*]['obs']"]
    """
    return [*(path[: step.start()] for step in _STEP_INTO.finditer(path)), path]


def grown_paths(
    before: Mapping[str, float],
    after: Mapping[str, float],
    entries_before: _Entries,
    entries: _Entries,
    share: float = 1.0,
) -> dict[str, float]:
    """Return the largest path of each growing container, with the growth of the container in bytes.

    At most three are returned, those with the largest lasting growth first. A path without a growing
    container counts separately. A container that has grown in all judged steps holds at least its growth
    since `before`, divided by the `share` of these steps. One that is filled and emptied again may have grown
    faster since `before`, but holds less, so only this share of its bytes counts as lasting growth.
    """
    growth = {path: nbytes - before.get(path, 0.0) for path, nbytes in after.items()}
    total, largest = dict[str, float](), dict[str, str]()
    for path in sorted((path for path in growth if growth[path] > 0), key=lambda path: -growth[path]):
        name = growing_container(path, entries_before, entries) or path
        total[name] = total.get(name, 0.0) + growth[path]
        largest.setdefault(name, path)
    fastest = [name for name in sorted(total, key=lambda name: -total[name]) if total[name] > _LEAST_BYTES]
    lasting = {name: min(total[name], share * _below(name, after)) for name in fastest[:_CANDIDATES]}
    top = sorted(lasting, key=lambda name: -lasting[name])[:_TOP]
    # A leak that has just started holds little, but grows fast.
    least, least_lasting = (_LEAST_SHARE * max(each.values(), default=0.0) for each in (total, lasting))
    return {
        largest[name]: total[name] for name in top if total[name] > least or lasting[name] > least_lasting
    }
