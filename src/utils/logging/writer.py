"""Metrics, images and text of a run, as `metrics.jsonl`, TensorBoard events and W&B rows."""

import json
import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..checked_files import writing
from ..errors import UserError
from ..metrics import require_detached_scalar
from ..video import encode_animation, encode_image, upscale
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
        resume_step: Agent steps of the checkpoint the run goes on from. Lines of later steps, written between
            that checkpoint and a crash, are dropped, because the run writes them again.
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
        if self._path.exists():
            _drop_unwanted_lines(self._path, resume_step)
        self._lines = self._path.open("a", encoding="utf-8")
        self._events = EventFile(run_dir / TENSORBOARD_FOLDER, resume_step) if tensorboard else None
        self._displays = [display for display in (self._events, wandb_run) if display]

    def scalars(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Write one line, one event and one row.

        Args:
            step: Agent steps taken so far.
            values: Numbers by tag. A tensor costs one wait for its device; use `MetricMeans` for many.

        Raises:
            GraphKept: If a tensor requires grad; nothing is written then.
            ValueError: If a tensor has a dimension; nothing is written then.
        """
        numbers: dict[str, float] = {}
        for tag, value in values.items():
            if isinstance(value, Tensor):
                require_detached_scalar(tag, value)
            numbers[tag] = float(value)
        line = {"step": step, **{tag: _json_number(number) for tag, number in numbers.items()}}
        with writing(self._path):
            self._lines.write(json.dumps(line, allow_nan=False) + "\n")
            self._lines.flush()
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

    def to_disk(self) -> None:
        """Bring the lines to disk, where a loss of power leaves them."""
        with writing(self._path):
            os.fsync(self._lines.fileno())

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


def _json_number(number: float) -> float | str:
    """Return the number, or its name in the spelling of protocol buffers' JSON when JSON has none."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")


def _drop_unwanted_lines(path: Path, resume_step: int | None) -> None:
    """Drop a last line that a crash left unfinished, and the lines of steps after `resume_step`."""
    kept_path = path.with_suffix(".tmp")
    try:
        with writing(kept_path), path.open("rb") as lines, kept_path.open("wb") as kept:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break
                if resume_step is None or _step_of(line, f"Line {number:,} of {path}") <= resume_step:
                    kept.write(line)
            kept.flush()
            os.fsync(kept.fileno())
        os.replace(kept_path, path)
    finally:
        kept_path.unlink(missing_ok=True)


def _step_of(line: bytes, name: str) -> int:
    """Return the step of a line.

    Raises:
        UserError: If it has none; the whole run shall not depend on one line of its log.
    """
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        step = None
    if type(step) is not int:
        raise UserError(f"{name} is none that Reverie wrote. Delete that line and try again.")
    return step
