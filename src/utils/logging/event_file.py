"""TensorBoard event files, written immediately and without a thread."""

import io
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

# Protocol buffers create their classes on import, so type checkers do not see them.
# pyright: reportAttributeAccessIssue=false
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from ..durable_io import writing
from ..errors import printable

_NAME = re.compile(r"events\.out\.tfevents\.(\d{10})\.(\d{9})\.")

_CHARTS = {
    "return": ["episode/return", "recent/return", "evaluation/return_mean", "population/fitness_.*"],
    "losses": ["train/loss/.*"],
    "KL divergence": ["train/kl"],
    "entropy": ["train/.*_entropy"],
    "throughput": ["speed/.*"],
    "memory": ["debug/cpu/rss_mb", "debug/gpu/reserved_mb", "memory/.*/size_mb"],
}
"""Regular expressions for the tags of each chart in Custom Scalars."""


class EventFile:
    """A new TensorBoard event file in `folder`. TensorBoard shows all files of a folder as one run.

    torch's `SummaryWriter` takes six times as long per log line, uses three times as much disk space, and
    needs a thread that hides a full disk and does not survive a fork. Here, each call hands its data to the
    system before it returns. With `resume_step`, TensorBoard drops the steps after it from earlier files.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in folder.iterdir()]
        is_first, earlier = (
            not names,
            [int(found[1] + found[2]) for found in map(_NAME.match, names) if found],
        )
        # TensorBoard reads the files of a folder in alphabetical order, and clocks of machines may differ.
        seconds, nanoseconds = divmod(max([time.time_ns(), *(each + 1 for each in earlier)]), 10**9)
        self._path = folder / f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{os.getpid()}"
        self._records = RecordWriter(self._path.open("xb"))
        self._write(file_version="brain.Event:2")
        if is_first or resume_step is not None:
            # A new START event makes TensorBoard drop all earlier events at and after its step.
            self._write(step=0 if resume_step is None else resume_step + 1, session_log={"status": "START"})
        self.layout(0 if resume_step is None else resume_step + 1)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write an event containing all scalars of a step."""
        self._show(step, *({"tag": tag, "simple_value": value} for tag, value in values.items()))

    def image(self, step: int, tag: str, encoded: bytes) -> None:
        """Write a (possibly animated) PNG without encoding it again."""
        with Image.open(io.BytesIO(encoded)) as opened:
            size = {"height": opened.height, "width": opened.width}
        self._show(step, {"tag": tag, "image": {**size, "colorspace": 3, "encoded_image_string": encoded}})

    def settings(self, step: int, as_yaml: str, values: Mapping[str, Any]) -> None:
        """Write the settings for the Text tab, and their values by name for the HParams tab."""
        self._bytes(step, "config", "text", f"```yaml\n{as_yaml}```".encode())
        plain = {
            key: each if isinstance(each, (float, int)) else printable(str(each))
            for key, each in values.items()
        }
        self._write(step=step, summary=hparams_pb(plain))

    def layout(self, step: int, band: str | None = None) -> None:
        """Write the layout of Custom Scalars. The last layout applies to the whole run.

        With `band`, the first chart shows `<band>/return` between `<band>/low` and `<band>/high`.
        """
        charts: list[Any] = [{"title": title, "multiline": {"tag": tags}} for title, tags in _CHARTS.items()]
        if band:
            tags = {"value": f"{band}/return", "lower": f"{band}/low", "upper": f"{band}/high"}
            charts.insert(0, {"title": band, "margin": {"series": [tags]}})
        layout = Layout(category=[{"title": "training", "chart": charts}])
        self._bytes(step, "custom_scalars__config__", "custom_scalars", layout.SerializeToString())

    def close(self) -> None:
        """Close the file. Calling this again has no effect."""
        with writing(self._path):
            self._records.close()

    def _bytes(self, step: int, tag: str, plugin: str, content: bytes) -> None:
        """Write data for a TensorBoard plugin."""
        metadata = {"plugin_data": {"plugin_name": plugin}}
        tensor = {"dtype": "DT_STRING", "string_val": [content]}
        self._show(step, {"tag": tag, "metadata": metadata, "tensor": tensor})

    def _show(self, step: int, *values: Mapping[str, Any]) -> None:
        self._write(step=step, summary={"value": values})

    def _write(self, **content: Any) -> None:
        with writing(self._path):
            self._records.write(Event(wall_time=time.time(), **content).SerializeToString())
            self._records.flush()
