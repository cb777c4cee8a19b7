"""Find the lines of code that allocated new memory that is still alive."""

import sysconfig
import tracemalloc

from ..objects.code_lines import OWN_FOLDER, is_library
from ..texts import count_text

# Frames of libraries count, but are not shown.
_FRAMES = 12
_SHOWN = 4
# Number of samples before the first inspection. The distance to the next one doubles each time.
_SAMPLES = 16
_TOP = 3
# The command `heapwatch` calls the program.
_OTHERS = (OWN_FOLDER, sysconfig.get_path("scripts"))


class NewestAllocations:
    """Traces allocations of Python and NumPy after the first `sample`. Data of tensors does not count."""

    def __init__(self) -> None:
        self._samples, self._next_look, self._looked_at = 0, _SAMPLES, 0
        self._started_it = False
        self.lines: list[str] = []
        """`file:line < its caller: 1.20 MB in 300 blocks` for the lines that grew most."""
        self._before: dict[tracemalloc.Traceback, tuple[int, int]] = {}

    def sample(self) -> None:
        """Start tracing, or inspect the traced allocations that are still alive."""
        if not self._samples and not tracemalloc.is_tracing():
            tracemalloc.start(_FRAMES)
            self._started_it = True
        self._samples += 1
        if self._samples == self._next_look:
            self._next_look *= 2
            self._look()

    def stop(self) -> None:
        """Inspect the allocations once more unless that was just done, and stop tracing."""
        if self._samples and (not self.lines or self._samples - self._looked_at >= _SAMPLES):
            self._look()
        if self._started_it:
            tracemalloc.stop()

    def _look(self) -> None:
        if not tracemalloc.is_tracing():
            return
        self._looked_at = self._samples
        hidden = [tracemalloc.Filter(False, name) for name in (f"{OWN_FOLDER}/*", tracemalloc.__file__)]
        found = tracemalloc.take_snapshot().filter_traces(hidden).statistics("traceback")
        before = [self._before.get(each.traceback, (0, 0)) for each in found]
        grown = [(e.size - size, e.count - count, e) for e, (size, count) in zip(found, before, strict=True)]
        self._before = {each.traceback: (each.size, each.count) for each in found}
        largest = sorted(grown, key=lambda each: -each[0])[:_TOP]
        most = sorted(grown, key=lambda each: -each[1])[:_TOP]
        # A full bounded container frees as much as it allocates, so it does not appear here.
        chosen = dict.fromkeys(each for size, count, each in (*largest, *most) if size > 0 and count > 0)
        lines = [
            f"{_place(each.traceback)}: {each.size / 1e6:,.2f} MB in {count_text(each.count, 'block')}"
            for each in chosen
        ]
        self.lines = lines or self.lines


def _place(traceback: tracemalloc.Traceback) -> str:
    """Return the code lines of a traceback, innermost first. Libraries count only without user code."""
    frames = [frame for frame in reversed(traceback) if not frame.filename.startswith("<frozen")]
    own = [f for f in frames if not f.filename.startswith(_OTHERS) and not is_library(f.filename)]
    return " < ".join(f"{frame.filename}:{frame.lineno}" for frame in (own or frames)[:_SHOWN])
