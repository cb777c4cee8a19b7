"""Metrics, images and text of a run, as `metrics.jsonl`, TensorBoard events and W&B rows."""

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..durable_io import writing
from ..environment_variables import environment_variables
from ..errors import UserError, first_line
from ..video import encode_animation, encode_image, upscale
from .config import WandbMode
from .json_lines import JsonLines

METRICS_FILE = "metrics.jsonl"
# No counters, no code and no output of W&B's own.
_QUIET: dict[str, Any] = dict.fromkeys(
    ("disable_code", "disable_git", "silent", "x_disable_meta", "x_disable_stats"), True
)
OnLine = Callable[[int, dict[str, float]], object]


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
        self._events = None
        with ExitStack() as undo:
            if wandb_run:
                undo.callback(wandb_run.close)  # it comes first: without a login the log stays as it was
            self._lines = JsonLines(self._path, resume_step)
            if tensorboard:
                from .event_file import EventFile  # its formats take 0.3 s to import

                self._events = EventFile(run_dir / "tensorboard", resume_step)
            undo.pop_all()
        self._displays = [display for display in (self._events, wandb_run) if display]
        self.on_line: OnLine | None = None
        """Called after each line, with its step and its values."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one line, one event and one row."""
        numbers = {tag: float(value) for tag, value in values.items()}
        self._lines.write({"step": step, **numbers})
        for display in self._displays:
            display.scalars(step, numbers)
        if self.on_line is not None:
            self.on_line(step, numbers)

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

    def drop(self, step: int, groups: tuple[str, ...]) -> None:
        """Drop the lines of a step whose tags begin with one of `groups`; displays keep what they have."""
        self._lines.drop(step, groups)

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
            closing.enter_context(environment_variables({"WANDB_CACHE_DIR": str(folder / "cache"), **quiet}))
            import wandb

            closing.callback(wandb.teardown)
            if mode is WandbMode.online:
                _require_login(wandb)
            self._run: Any = wandb.init(
                dir=str(run_dir),
                project=os.environ.get("WANDB_PROJECT", "reverie"),
                name=run_dir.name,
                group=run_dir.name,
                mode=mode.value,
                settings=wandb.Settings(console="off", x_save_requirements=False, **_QUIET),
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
        import wandb

        self._media.write_bytes(encoded)
        # Given a file, W&B copies its bytes; given pixels, it would keep the first frame alone.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it forgets to close the file of an animation
            shown = wandb.Image(str(self._media))
        self._run.log({"step": step, tag: shown})
        self._media.unlink()

    def close(self) -> None:
        """Write what is left and end the helper process; a second call does nothing."""
        self._closing.close()


def _require_login(wandb: Any) -> None:
    """Raise a `UserError` if there is no login; nobody is asked for a key in the middle of a run."""
    try:
        if wandb.login(prompt=False):
            return
        reason = "no login was found"
    except (wandb.errors.Error, OSError) as error:
        reason = first_line(error).rstrip(".")
    raise UserError(
        f"logger.wandb=online could not log in to W&B: {reason}. "
        "Run `wandb login`, or set logger.wandb=offline."
    )
