"""Metrics, images and text of a run, as `metrics.jsonl`, TensorBoard events and W&B rows."""

import importlib.util
import io
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
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
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG, PLUGIN_NAME
from tensorboard.summary.writer.record_writer import RecordWriter

from ..durable_io import writing
from ..errors import UserError
from ..video import encode_animation, encode_image, upscale
from .json_lines import JsonLines

METRICS_FILE = "metrics.jsonl"


class WandbMode(Enum):
    """Where metrics for Weights & Biases go; the names are what users type."""

    off = "off"
    offline = "offline"
    online = "online"


def require_wandb(mode: WandbMode) -> None:
    """Raise a `UserError` if the package is asked for and missing; it is not imported."""
    if mode is not WandbMode.off and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"logger.wandb={mode.value} needs the package wandb, which is not installed here. "
            "Run `pip install 'reverie[wandb]'`, or set logger.wandb=off."
        )


class MetricsWriter:
    """Writes what a run reports; every call is out of the process when it returns, and nothing is kept.

    `metrics.jsonl` is continued as `JsonLines` does. W&B's helper process writes with a delay. If W&B has no
    login, or `metrics.jsonl` holds something else, a `UserError`, and nothing is written.
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

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one line, one event and one row."""
        numbers = {tag: float(value) for tag, value in values.items()}
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

    def band(self, step: int, group: str) -> None:
        """Show `<group>/return` between `<group>/low` and `<group>/high` in TensorBoard's Custom Scalars."""
        if self._events:
            self._events.band(step, group)

    def flush(self) -> None:
        """Bring the lines to disk, where a loss of power leaves them."""
        self._lines.flush()

    def close(self) -> None:
        """Close all files, also if a disk is full; a second call does nothing."""
        with writing(self._path), ExitStack() as closing:
            for opened in (self._lines, *self._displays):
                closing.callback(opened.close)

    def _show(self, step: int, tag: str, encoded: bytes) -> None:
        for display in self._displays:
            display.image(step, tag, encoded)


def _screen_factor(height: int, width: int) -> int:
    return max(1, min(4, 512 // max(height, width)))  # 64 pixels to 256, and nothing beyond 512


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


class WandbRun:
    """One W&B run, named and grouped after the run folder; `mode` is not off.

    The package is imported only here, and writes only into `run_dir/wandb`. `offline` opens no connection;
    `wandb sync` uploads its files later. A resumed run becomes a further W&B run of the same group: W&B
    cannot take back the rows after the last checkpoint. `WANDB_PROJECT` and `WANDB_ENTITY` are heeded.
    `close` ends the helper process (`wandb-core`) and its two threads, for any other W&B run, too. A
    `UserError` if `mode` is online and there is no login.

    Cost, wandb 0.31 on a CPU: 1 s to open; 0.5 ms for 60 scalars; 50 MB of memory for the helper process.
    """

    def __init__(self, run_dir: Path, mode: WandbMode) -> None:
        assert mode is not WandbMode.off
        run_dir = run_dir.resolve()
        folder = run_dir / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        with ExitStack() as closing:
            # Read whenever a helper process or a reporter starts, so they hold as long as the run is open.
            closing.enter_context(_environment({"WANDB_CACHE_DIR": str(folder / "cache"), **quiet}))
            import wandb

            closing.callback(wandb.teardown)
            if mode is WandbMode.online:
                _require_login(wandb)
            self._wandb: Any = wandb
            self._run: Any = wandb.init(
                dir=str(run_dir),
                project=os.environ.get("WANDB_PROJECT", "reverie"),
                name=run_dir.name,
                group=run_dir.name,
                mode=mode.value,
                settings=wandb.Settings(  # no output, no counters, no code and no list of packages
                    console="off",
                    disable_code=True,
                    disable_git=True,
                    silent=True,
                    x_disable_meta=True,
                    x_disable_stats=True,
                    x_save_requirements=False,
                ),
            )
            closing.callback(self._run.finish)
            # The own axis: W&B's would refuse a second row of a step, and one of an earlier step.
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")
            self._closing = closing.pop_all()
        self._media = folder / ".image.png"

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one row, as a line of `metrics.jsonl`."""
        self._run.log({"step": step, **values})

    def image(self, step: int, tag: str, encoded: bytes) -> None:
        """Write an encoded PNG as it is, an animated one too."""
        self._media.write_bytes(encoded)
        # Given a file, W&B copies its bytes; given pixels, it would keep the first frame alone.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it forgets to close the file of an animation
            shown = self._wandb.Image(str(self._media))
        self._run.log({"step": step, tag: shown})
        self._media.unlink()

    def close(self) -> None:
        """Write what is left and end the helper process; a second call does nothing."""
        self._closing.close()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the `with` block."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


def _require_login(wandb: Any) -> None:
    """Raise a `UserError` if there is no login; nobody is asked for a key in the middle of a run."""
    try:
        if wandb.login(prompt=False):
            return
        reason = "no login was found"
    except (wandb.errors.Error, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
    raise UserError(
        f"logger.wandb=online could not log in to W&B: {reason}. "
        "Run `wandb login`, or set logger.wandb=offline."
    )
