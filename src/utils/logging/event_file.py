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
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG, PLUGIN_NAME
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
            step = 0 if resume_step is None else resume_step + 1
            self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one event with all scalars of a step."""
        shown = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(step=step, summary=Summary(value=shown))

    def image(self, step: int, tag: str, encoded: bytes) -> None:
        """Write an encoded PNG as it is, an animated one too."""
        with Image.open(io.BytesIO(encoded)) as opened:
            width, height = opened.size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=encoded)
        self._write(step=step, summary=Summary(value=[Summary.Value(tag=tag, image=image)]))

    def text(self, step: int, tag: str, markdown: str) -> None:
        """Write a text, which TensorBoard renders as Markdown."""
        self._bytes(step, tag, "text", markdown.encode())

    def band(self, step: int, group: str) -> None:
        """Write the layout of a chart of a value between two others; the last one holds for the whole run."""
        names = {"value": "return", "lower": "low", "upper": "high"}
        tags = {role: f"{group}/{name}" for role, name in names.items()}
        margin = layout_pb2.MarginChartContent(series=[layout_pb2.MarginChartContent.Series(**tags)])
        chart = layout_pb2.Chart(title=group, margin=margin)
        layout = layout_pb2.Layout(category=[layout_pb2.Category(title=group, chart=[chart])])
        self._bytes(step, CONFIG_SUMMARY_TAG, PLUGIN_NAME, layout.SerializeToString())

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with writing(self._path):
            self._records.close()

    def _bytes(self, step: int, tag: str, plugin: str, content: bytes) -> None:
        """Write what a plugin of TensorBoard shows in its own way."""
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
        tensor = TensorProto(dtype=DT_STRING, string_val=[content])
        shown = Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        self._write(step=step, summary=Summary(value=[shown]))

    def _write(self, **content: Any) -> None:
        with writing(self._path):
            self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
            self._records.flush()
