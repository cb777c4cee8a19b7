"""Metrics, images and text of a run, as `metrics.jsonl`, TensorBoard events and W&B rows."""

import io
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Protocol buffers make their classes when they are imported, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor

from ..durable_io import writing
from ..metrics import require_detached_scalar
from ..video import encode_animation, encode_image, upscale
from .json_lines import JsonLines
from .wandb import WandbMode, WandbRun

METRICS_FILE = "metrics.jsonl"


class MetricsWriter:
    """Writes what a run reports; every call is out of the process when it returns, and nothing is kept.

    `metrics.jsonl` is continued as `JsonLines` does. W&B's helper process writes with a delay.

    Raises:
        UserError: If W&B has no login, or `metrics.jsonl` holds something else; nothing is written then.
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
        self._events = EventFile(run_dir / "tensorboard", resume_step) if tensorboard else None
        self._displays = [display for display in (self._events, wandb_run) if display]

    def scalars(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        """Write one line, one event and one row; a tensor costs one wait for its device.

        Nothing is written if one is refused, as `require_detached_scalar` does.
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
        """Show an image, uint8 (height, width, 3), enlarged when it is small."""
        if self._displays:
            self._show(step, tag, encode_image(upscale(image, _screen_factor(*image.shape[:2]))))

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
    return max(1, min(4, 512 // max(height, width)))


class EventFile:
    """A new TensorBoard event file in `folder`; all files of a folder are shown as one run.

    torch's `SummaryWriter` takes six times as long for a log line, three times the disk, and has a thread: a
    full disk would show in it, a fork would lose it. Here each call is out of the process when it returns.

    With `resume_step`, TensorBoard drops what earlier files hold for later steps.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        is_first = not any(folder.iterdir())
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        # TensorBoard reads the files of a folder in the order of their names.
        self._path = folder / f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{os.getpid()}"
        self._records = RecordWriter(self._path.open("xb"))
        self._write(file_version="brain.Event:2")
        if is_first or resume_step is not None:
            # A start after the first start makes TensorBoard drop the events from its step on.
            step = 0 if resume_step is None else resume_step + 1
            self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one event with all scalars of a step."""
        shown = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(step=step, summary=Summary(value=shown))

    def image(self, step: int, tag: str, encoded: bytes) -> None:
        """Write an encoded PNG or GIF as it is: TensorBoard's page lets the browser animate it."""
        with Image.open(io.BytesIO(encoded)) as opened:
            width, height = opened.size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=encoded)
        self._write(step=step, summary=Summary(value=[Summary.Value(tag=tag, image=image)]))

    def text(self, step: int, tag: str, markdown: str) -> None:
        """Write a text, which TensorBoard renders as Markdown."""
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode()])
        shown = Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        self._write(step=step, summary=Summary(value=[shown]))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with writing(self._path):
            self._records.close()

    def _write(self, **content: Any) -> None:
        with writing(self._path):
            self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
            self._records.flush()
