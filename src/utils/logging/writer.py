"""Metrics, images and text of a run, as `metrics.jsonl`, TensorBoard events and W&B rows."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..durable_io import writing
from ..metrics import require_detached_scalar
from ..video import encode_animation, encode_image, upscale
from .json_lines import JsonLines
from .tensorboard import EventFile
from .wandb import WandbMode, WandbRun

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
_SCREEN_PIXELS = 512
_LARGEST_FACTOR = 4


class MetricsWriter:
    """Writes what a run reports; every call is out of the process when it returns, and nothing is kept.

    A line of `metrics.jsonl` is one flat JSON object: `step` and the tags of that call. JSON has no
    NaN: a number that is not finite is written as "NaN", "Infinity" or "-Infinity", which `float()` reads.

    Args:
        run_dir: The run folder, created when missing. Its `metrics.jsonl` is continued when there is one.
        tensorboard: Whether to write `tensorboard/` too; without it text goes nowhere.
        resume_step: Agent steps of the checkpoint that the run continues from. Lines of later steps, written
            between that checkpoint and a crash, are dropped, because the run writes them again.
        wandb: Whether W&B gets the same scalars and images. Its helper process writes them with a delay.

    Raises:
        UserError: If W&B is asked for and cannot be had, or `metrics.jsonl` holds something else; nothing is
            written then.
    """

    def __init__(
        self,
        run_dir: Path,
        tensorboard: bool = True,
        resume_step: int | None = None,
        wandb: WandbMode = WandbMode.off,
    ) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        wandb_run = None if wandb is WandbMode.off else WandbRun(run_dir, wandb)
        self._path = run_dir / METRICS_FILE
        self._lines = JsonLines(self._path, resume_step)
        self._events = EventFile(run_dir / TENSORBOARD_FOLDER, resume_step) if tensorboard else None
        self._displays = [display for display in (self._events, wandb_run) if display]

    def scalars(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Write one line, one event and one row.

        Args:
            step: Agent steps taken so far.
            values: Numbers by tag. A tensor costs one wait for its device; use `MetricMeans` for many.

        Raises:
            AttachedMetricError: If a tensor requires grad; nothing is written then.
            ValueError: If a tensor has a dimension; nothing is written then.
        """
        numbers: dict[str, float] = {}
        for tag, value in values.items():
            if isinstance(value, Tensor):
                require_detached_scalar(tag, value)
            numbers[tag] = float(value)
        self._lines.write({"step": step, **numbers})
        for display in self._displays:
            display.scalars(step, numbers)

    def image(self, step: int, tag: str, image: NDArray[np.uint8]) -> None:
        """Show an image, uint8 (height, width, 3), enlarged by a whole factor when it is small."""
        if self._displays:
            enlarged = upscale(image[None], _screen_factor(*image.shape[:2]))[0]
            self._show(step, tag, encode_image(enlarged))

    def animation(self, step: int, tag: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Show frames, uint8 (time, height, width, 3), as an animated image."""
        if self._displays:
            enlarged = upscale(frames, _screen_factor(*frames.shape[1:3]))
            self._show(step, tag, encode_animation(enlarged, fps))

    def text(self, step: int, tag: str, markdown: str) -> None:
        """Show a text under TensorBoard's Text."""
        if self._events:
            self._events.text(step, tag, markdown)

    def flush(self) -> None:
        """Bring the lines to disk, where a loss of power leaves them."""
        self._lines.flush()

    def close(self) -> None:
        """Close all files, also if one of them has a disk that is full; a second call does nothing."""
        with writing(self._path), ExitStack() as closing:
            for opened in (self._lines, *self._displays):
                closing.callback(opened.close)

    def _show(self, step: int, tag: str, encoded: bytes) -> None:
        for display in self._displays:
            display.image(step, tag, encoded)


def _screen_factor(height: int, width: int) -> int:
    """Return the whole factor that brings 64 pixels to 256 and nothing beyond 512."""
    return max(1, min(_LARGEST_FACTOR, _SCREEN_PIXELS // max(height, width)))
