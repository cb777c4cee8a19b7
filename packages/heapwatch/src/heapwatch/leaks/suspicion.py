"""State of a growing counter: the reference for searches, and the holder found so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..counters.glibc import malloc_bytes
from ..counters.process import memory_counters, outside_bytes, shared_bytes
from ..objects.growth import GrowthSources, Heap, Message
from ..texts import size_text
from .detector import WatchedCounter
from .verdict import TrendClass

# Kinds of memory outside Python with a smaller share of the growth are not shown.
_LEAST_SHARE = 0.2
_SHARED_TAG = "debug/cpu/rss_shmem_mb"


def now_bytes(counter: WatchedCounter) -> int:
    """Return the current value of a counter, including its planned amount."""
    return int(memory_counters()[counter.tag] * counter.scale)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """State of the heap and the counters when a series first looked like growth."""

    step: int
    heap: Heap
    counters: Mapping[str, float] = field(default_factory=memory_counters)
    system_bytes: int | None = field(default_factory=lambda: malloc_bytes("arena", "hblkhd"))
    outside: Mapping[str, float] = field(default_factory=outside_bytes)
    """Memory outside Python by kind, in bytes."""
    shared_bytes: int = field(default_factory=shared_bytes)
    """Mapped shared memory, touched or not."""

    def rise(self, counter: WatchedCounter) -> float:
        """Return the growth of a counter since then."""
        return now_bytes(counter) - self.counters[counter.tag] * counter.scale

    def is_first_use(self, counter: WatchedCounter) -> bool:
        """Return whether a counter of shared memory has grown in blocks that were mapped before."""
        mapped = shared_bytes() - self.shared_bytes
        return counter.tag == _SHARED_TAG and mapped < self.rise(counter) / 2

    def outside_message(self, counter: WatchedCounter, line: str, held: float, rate: float) -> Message:
        """Describe growth outside Python in all but the `held` bytes, with its rate in bytes per step."""
        size, least = size_text(now_bytes(counter) - held), self.rise(counter) * _LEAST_SHARE
        # The other kinds are not part of the host memory in use.
        found = outside_bytes() if counter.source or counter.on_gpu else {}
        kinds = {name: each for name, each in found.items() if each - self.outside.get(name, 0) > least}
        more = "".join(f"; {name}: {size_text(each)}" for name, each in kinds.items())
        text = f"held outside Python: {size}, +{size_text(rate)} per step: {line.rpartition(': ')[2]}{more}."
        return Message(text)


@dataclass(slots=True)
class Growth:
    """Findings about a growing counter."""

    found: GrowthSources
    is_searched_for: bool = True
    """Whether a search of the heap can find the holder."""
    since: Suspicion | None = None
    """State at the last search that found a holder. Later growth is compared with it."""
    trend_tests: int = 0
    reported: tuple[TrendClass, str | None] | None = None
    """The reported verdict and holder."""

    @property
    def is_due(self) -> bool:
        """Whether to search: after 1, 2, 4, 8 ... tests, or 1, 4, 16 ... if named. A search is slow."""
        is_power_of_2 = self.trend_tests & (self.trend_tests - 1) == 0
        is_power_of_4 = self.trend_tests.bit_length() % 2 == 1
        return is_power_of_2 and (is_power_of_4 or not self.found.is_named or self.found.is_filling)
