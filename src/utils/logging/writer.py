"""Writing of metrics, images and text to `metrics.jsonl`, TensorBoard and W&B."""

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
from ..errors import UserError, first_line, printable
from ..video import encode_animation, encode_image, upscale
from .config import WandbMode
from .json_lines import METRICS_FILE, JsonLines

# These options disable W&B's own statistics, code upload and output.
_QUIET: dict[str, Any] = dict.fromkeys(
    ("disable_code", "disable_git", "silent", "x_disable_meta", "x_disable_stats"), True
)
OnLine = Callable[[int, dict[str, float]], object]


class MetricsWriter:
    """Writes a run's metrics without buffering, except that W&B's helper process writes with a delay.

    `JsonLines` describes how `metrics.jsonl` is continued.

    Raises:
        UserError: If W&B has no login, or `metrics.jsonl` has other contents. No file is changed then.
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
                undo.callback(wandb_run.close)
            # W&B is opened before the log, so that a missing login leaves the log unchanged.
            self.lines = JsonLines(self._path, resume_step)
            if tensorboard:
                # This import is slow (0.3 s).
                from .event_file import EventFile

                self._events = EventFile(run_dir / "tensorboard", resume_step)
            undo.pop_all()
        self._displays = [display for display in (self._events, wandb_run) if display]
        self.on_line: OnLine | None = None
        """Called for each line with its step and values."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write a line, a TensorBoard event and a W&B row."""
        numbers = {tag: float(value) for tag, value in values.items()}
        self.lines.write({"step": step, **numbers})
        for display in self._displays:
            display.scalars(step, numbers)
        if self.on_line is not None:
            self.on_line(step, numbers)

    def image(self, step: int, tag: str, image: NDArray[np.uint8]) -> None:
        """Show an image, uint8 (height, width, 3). Small images are upscaled."""
        if self._displays:
            self._show(step, tag, encode_image(upscale(image, _screen_factor(*image.shape[:2]))))

    def animation(self, step: int, tag: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Show frames, uint8 (time, height, width, 3), as an animated image."""
        if self._displays:
            factor = _screen_factor(*frames.shape[1:3])
            self._show(step, tag, encode_animation((upscale(frame, factor) for frame in frames), fps))

    def settings(self, step: int, as_yaml: str, values: Mapping[str, Any]) -> None:
        """Show the run's settings in TensorBoard's Text and HParams tabs, and as the configuration in W&B."""
        # Paths may contain bytes that are not valid in UTF-8.
        shown = {key: printable(each) if isinstance(each, str) else each for key, each in values.items()}
        for display in self._displays:
            display.settings(step, as_yaml, shown)

    def band(self, step: int, group: str) -> None:
        """Show `<group>/return` between `<group>/low` and `<group>/high` in TensorBoard's Custom Scalars."""
        if self._events:
            self._events.layout(step, group)

    def close(self) -> None:
        """Close all files, even if a disk is full. Calling this again has no effect."""
        with writing(self._path), ExitStack() as closing:
            for opened in (self.lines, *self._displays):
                closing.callback(opened.close)

    def _show(self, step: int, tag: str, encoded: bytes) -> None:
        for display in self._displays:
            display.image(step, tag, encoded)


def _screen_factor(height: int, width: int) -> int:
    # Upscale 64 pixels to 256, but never beyond 512.
    return max(1, min(4, 512 // max(height, width)))


class WandbRun:
    """A W&B run, named and grouped after the run folder. `mode` must not be off.

    The package is only imported here, and it only writes to `run_dir/wandb`. With `offline`, it does not
    connect, and `wandb sync` uploads its files later. A resumed run becomes another W&B run in the same
    group, because W&B cannot delete the rows after the last checkpoint. `WANDB_PROJECT` and `WANDB_ENTITY`
    apply. `close` ends the helper process (`wandb-core`) and its two threads, even for other W&B runs.

    With wandb 0.31 on a CPU, opening takes 1 s, 60 scalars take 0.5 ms, and the helper process uses 50 MB.

    Raises:
        UserError: If `mode` is online without a login.
    """

    def __init__(self, run_dir: Path, mode: WandbMode) -> None:
        assert mode is not WandbMode.off
        run_dir = run_dir.resolve()
        folder = run_dir / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        with ExitStack() as closing:
            # Helper processes and reporters may start at any time, and read these variables at their start.
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
            # W&B's default axis does not accept repeated or earlier steps.
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")
            self._closing = closing.pop_all()
        self._media = folder / ".image.png"

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write a row with the values of one line of `metrics.jsonl`."""
        self._run.log({"step": step, **values})

    def settings(self, _step: int, _as_yaml: str, values: Mapping[str, Any]) -> None:
        """Store the settings by name."""
        self._run.config.update(values)

    def image(self, step: int, tag: str, encoded: bytes) -> None:
        """Write a (possibly animated) PNG without encoding it again."""
        import wandb

        self._media.write_bytes(encoded)
        # W&B copies the bytes of a file, but would only store the first frame of an array.
        with warnings.catch_warnings():
            # W&B does not close the file of an animation.
            warnings.simplefilter("ignore", ResourceWarning)
            shown = wandb.Image(str(self._media))
        self._run.log({"step": step, tag: shown})
        self._media.unlink()

    def close(self) -> None:
        """Write pending data and end the helper process. Calling this again has no effect."""
        self._closing.close()


def _require_login(wandb: Any) -> None:
    """Raise `UserError` without a login, instead of prompting for a key during a run."""
    try:
        if wandb.login(prompt=False):
            return
        reason = "not logged in"
    except (wandb.errors.Error, OSError) as error:
        reason = first_line(error).rstrip(".")
    raise UserError(
        f"logger.wandb=online could not log in to W&B: {reason}. "
        "Run `wandb login`, or set logger.wandb=offline."
    )
