"""Name the lines of code that allocated what is new and still alive."""

import tracemalloc
from pathlib import Path

_FRAMES = 6
_SAMPLES = 16  # before the first look; the next ones come after twice as many
_TOP = 3
_OWN_FOLDER = str(Path(__file__).parents[1])


class NewestAllocations:
    """Traces what Python and NumPy allocate from the first call of `sample` on; of tensors the objects."""

    def __init__(self) -> None:
        self._samples, self._next_look = 0, _SAMPLES
        self._started_it = False
        self._lines: list[str] = []

    def sample(self) -> None:
        """Begin to trace, or look at what is alive of what was allocated since."""
        if not self._samples and not tracemalloc.is_tracing():
            tracemalloc.start(_FRAMES)
            self._started_it = True
        self._samples += 1
        if self._samples == self._next_look:
            self._next_look *= 2
            self._look()

    def stop(self) -> None:
        """Look once more, and trace no longer."""
        if self._samples:
            self._look()
        if self._started_it:
            tracemalloc.stop()

    def lines(self) -> list[str]:
        """Return `file:line < its caller: 1.20 MB in 300 blocks`, most bytes first, then most blocks."""
        return self._lines

    def _look(self) -> None:
        if not tracemalloc.is_tracing():
            return
        hidden = [
            tracemalloc.Filter(False, f"{_OWN_FOLDER}/*"),
            tracemalloc.Filter(False, tracemalloc.__file__),
        ]
        found = tracemalloc.take_snapshot().filter_traces(hidden).statistics("traceback")
        largest = sorted(found, key=lambda each: -each.size)[:_TOP]
        most = sorted(found, key=lambda each: -each.count)[:_TOP]
        self._lines = []
        for each in dict.fromkeys((*largest, *most)):
            places = [f"{frame.filename}:{frame.lineno}" for frame in reversed(each.traceback)]
            shown = " < ".join([place for place in places if not place.startswith("<frozen")][:4])
            self._lines.append(f"{shown}: {each.size / 1e6:,.2f} MB in {each.count:,} blocks")
