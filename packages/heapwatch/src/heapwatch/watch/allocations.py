"""Name the lines of code that allocated what is new and still alive."""

import tracemalloc

from ..objects.heap import OWN_FOLDER, is_library
from ..texts import count_text

_FRAMES = 12  # of which those of libraries are not shown
_SHOWN = 4
_SAMPLES = 16  # before the first look; the next ones come after twice as many
_TOP = 3


class NewestAllocations:
    """Traces what Python and NumPy allocate from the first call of `sample` on; of tensors the objects."""

    def __init__(self) -> None:
        self._samples, self._next_look, self._looked_at = 0, _SAMPLES, 0
        self._started_it = False
        self._lines: list[str] = []
        self._before: dict[tracemalloc.Traceback, tuple[int, int]] = {}

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
        """Look once more unless that was just done, and trace no longer."""
        if self._samples and (not self._lines or self._samples - self._looked_at >= _SAMPLES):
            self._look()
        if self._started_it:
            tracemalloc.stop()

    def lines(self) -> list[str]:
        """Return `file:line < its caller: 1.20 MB in 300 blocks` of what grew most since the look before."""
        return self._lines

    def _look(self) -> None:
        if not tracemalloc.is_tracing():
            return
        self._looked_at = self._samples
        own = (f"{OWN_FOLDER}/*", tracemalloc.__file__)
        hidden = [tracemalloc.Filter(False, name) for name in own]
        found = tracemalloc.take_snapshot().filter_traces(hidden).statistics("traceback")
        grown = []
        for each in found:
            size, count = self._before.get(each.traceback, (0, 0))
            grown.append((each.size - size, each.count - count, each))
        self._before = {each.traceback: (each.size, each.count) for each in found}
        largest = sorted(grown, key=lambda each: -each[0])[:_TOP]
        most = sorted(grown, key=lambda each: -each[1])[:_TOP]
        # Of what a bounded container holds as much goes as comes, once it is full.
        chosen = dict.fromkeys(each for size, count, each in (*largest, *most) if size > 0 and count > 0)
        lines = [
            f"{_place(each.traceback)}: {each.size / 1e6:,.2f} MB in {count_text(each.count, 'block')}"
            for each in chosen
        ]
        self._lines = lines or self._lines


def _place(traceback: tracemalloc.Traceback) -> str:
    """Return lines, the innermost first: those of the user's own code, if there are any."""
    frames = [frame for frame in reversed(traceback) if not frame.filename.startswith("<frozen")]
    own = [f for f in frames if not f.filename.startswith(OWN_FOLDER) and not is_library(f.filename)]
    return " < ".join(f"{frame.filename}:{frame.lineno}" for frame in (own or frames)[:_SHOWN])
