"""TensorBoard event files, written at once and without a thread."""

import io
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

# Protocol buffers make their classes when they are imported, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.summary.writer.record_writer import RecordWriter

from ..durable_io import writing


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
            self._write(step=0 if resume_step is None else resume_step + 1, session_log={"status": "START"})

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one event with all scalars of a step."""
        self._show(step, *({"tag": tag, "simple_value": value} for tag, value in values.items()))

    def image(self, step: int, tag: str, encoded: bytes) -> None:
        """Write an encoded PNG as it is, an animated one too."""
        with Image.open(io.BytesIO(encoded)) as opened:
            size = {"height": opened.height, "width": opened.width}
        self._show(step, {"tag": tag, "image": {**size, "colorspace": 3, "encoded_image_string": encoded}})

    def text(self, step: int, tag: str, markdown: str) -> None:
        """Write a text, which TensorBoard renders as Markdown."""
        self._bytes(step, tag, "text", markdown.encode())

    def band(self, step: int, group: str) -> None:
        """Write the layout of a chart of a value between two others; the last one holds for the whole run."""
        tags = {"value": f"{group}/return", "lower": f"{group}/low", "upper": f"{group}/high"}
        chart = {"title": group, "margin": {"series": [tags]}}
        layout = Layout(category=[{"title": group, "chart": [chart]}])
        self._bytes(step, "custom_scalars__config__", "custom_scalars", layout.SerializeToString())

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with writing(self._path):
            self._records.close()

    def _bytes(self, step: int, tag: str, plugin: str, content: bytes) -> None:
        """Write what a plugin of TensorBoard shows in its own way."""
        metadata = {"plugin_data": {"plugin_name": plugin}}
        tensor = {"dtype": "DT_STRING", "string_val": [content]}
        self._show(step, {"tag": tag, "metadata": metadata, "tensor": tensor})

    def _show(self, step: int, *values: Mapping[str, Any]) -> None:
        self._write(step=step, summary={"value": values})

    def _write(self, **content: Any) -> None:
        with writing(self._path):
            self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
            self._records.flush()
