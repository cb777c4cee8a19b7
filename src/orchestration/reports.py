"""What a run writes and shows: scalars, episodes, animations, progress."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from heapwatch.leaks.table import MemoryReport
from numpy.typing import NDArray

from ..config.schema import TrainConfig
from ..envs.episodes import Episode
from ..utils.logging import LEARNING, MetricsWriter, Progress, ProgressMode
from ..utils.timestep import EnvSpec
from ..utils.video import save_video, upscale
from .threads import PaceWatch

_LOG = logging.getLogger(__name__)
VIDEOS = "videos"
VIDEO_FPS = 15  # an Atari agent step is 4 frames of 60 Hz
OPEN_LOOP_FPS = 5
VIDEO_SIDE = 256  # pixels to which small frames are enlarged
MAX_ANIMATION_FRAMES = 300
STRIP_FRAMES = 8


def write_video(path: Path, frames: NDArray[np.uint8], fps: float = VIDEO_FPS) -> None:
    """Write frames (T, H, W, 3) as a video, small ones enlarged."""
    scale = max(1, VIDEO_SIDE // max(frames.shape[1:3]))
    save_video(path, (upscale(frame, scale) for frame in frames), fps)


def no_pictures(env: EnvSpec) -> str:
    """Return why there is no video of an environment."""
    return f'{env.name} has no image observation, and no `rgb_array` in metadata["render_modes"]'


class Reports:
    """Writes a run's metrics to its logs, its videos to `videos/`, and its progress to the terminal.

    What was written after `resume_step`, the step of the checkpoint that the run continues from, is dropped.
    `planned_mb` is the host and GPU memory that the run has planned for, in MB of 1e6 bytes.
    """

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        spec: EnvSpec,
        progress: ProgressMode,
        resume_step: int | None = None,
        planned_mb: float | None = None,
    ) -> None:
        self._run_dir, self._action_repeat = run_dir, spec.action_repeat
        self.writer = MetricsWriter(run_dir, config.logger.tensorboard, resume_step, config.logger.wandb)
        self._progress = Progress(config.training.total_timesteps, progress, resume_step or 0)
        self.planned_mb = planned_mb
        self._threads = config.threads or torch.get_num_threads()
        self._last_return: float | None = None
        self._since = (time.monotonic(), resume_step or 0, 0)
        self._has_noted = False
        self._pace, self._has_one_phase = PaceWatch(), True

    def episode(self, step: int, episode: Episode) -> None:
        """Write a finished training episode."""
        self._last_return = episode.episode_return
        values = {"episode/return": episode.episode_return, "episode/length": float(episode.length)}
        self.writer.scalars(step, values)

    def interval(self, step: int, updates: int, metrics: dict[str, float]) -> None:
        """Write the metrics of a log interval with its speeds, those of this process, and show progress."""
        speeds = self._speeds(step, updates)
        self.writer.scalars(step, metrics | speeds)
        self._progress.update(
            step,
            episode_return=self._last_return,
            updates_per_second=speeds["speed/updates_per_second"],
            memory_mb=metrics["debug/cpu/rss_mb"] + metrics["debug/gpu/reserved_mb"],
            planned_mb=self.planned_mb,
        )
        if self._has_one_phase:
            self._watch_pace(speeds, metrics["time/update_fraction"])
        self._has_one_phase = True

    def generation(
        self, step: int, updates: int, metrics: dict[str, float], block: list[str], until: int | None
    ) -> None:
        """Write the metrics of a generation with its speeds, and show its block.

        `until` is the step up to which no member learns, or None once they do.
        """
        speeds = self._speeds(step, updates)
        self.writer.scalars(step, metrics | speeds)
        self.advance(step, updates, LEARNING if until is None else "filling the replay", until)
        for line in block:
            _LOG.info(line)
        self._watch_pace(speeds, metrics["time/learn_fraction"])

    def _watch_pace(self, speeds: dict[str, float], fraction: float) -> None:
        """Suggest one thread once updates, which took a fraction of the time, are half as fast as before."""
        if self._threads == 1 or not fraction:
            return
        if self._pace.has_halved(speeds["speed/updates_per_second"] / fraction):
            _LOG.warning(
                "updates take twice as long as earlier in this run. If other programs use the CPUs now, stop "
                "it and resume it with threads=1 (%d now).",
                self._threads,
            )

    def _speeds(self, step: int, updates: int) -> dict[str, float]:
        """Return how fast it went since the last call."""
        now, (then, then_step, then_updates) = time.monotonic(), self._since
        self._since = (now, step, updates)
        seconds = max(now - then, 1e-9)
        return {
            "speed/steps_per_second": (step - then_step) / seconds,
            "speed/frames_per_second": (step - then_step) * self._action_repeat / seconds,
            "speed/updates_per_second": (updates - then_updates) / seconds,
        }

    def advance(self, step: int, updates: int, phase: str, until: int | None = None) -> None:
        """Move the progress bar; see `Progress.advance`."""
        self._has_one_phase &= until is None
        self._progress.advance(step, updates, phase, until)

    def describe(self) -> str:
        """Return what the run is doing, and how far it is."""
        return self._progress.describe()

    @contextmanager
    def doing(self, words: str) -> Iterator[None]:
        """Show on the progress line what takes its time."""
        self._progress.set_status(words)
        try:
            yield
        finally:
            self._progress.set_status(None)

    def note(self, words: str | None) -> None:
        """Show what takes its time, on the progress line; None for nothing more."""
        if words and not self._has_noted:
            _LOG.info("%s, once: it may take a minute", words)
            self._has_noted = True
        self._progress.set_status(words, is_once=True)

    def memory(self, step: int, report: MemoryReport | None, footprint: dict[str, float]) -> None:
        """Write what holds what, if anything is tracked, and what the whole run takes from the machine."""
        tags = {f"debug/run/{name}": value for name, value in footprint.items()}
        self.writer.scalars(step, tags if report is None else tags | report.tags())
        if report is not None:
            text = f"memory {report.summary()}" if report.is_still else f"memory\n{report.table()}"
            _LOG.info("step %s: %s", f"{step:,}", text)

    def evaluation(self, step: int, mean: float, standard_error: float | None, mean_length: float) -> None:
        """Write the result of an evaluation; a single episode has no standard error."""
        values, spread = {"return_mean": mean, "length_mean": mean_length}, ""
        if standard_error is not None:
            values["return_standard_error"] = standard_error
            spread = f" (standard error {standard_error:.2g})"
        _LOG.info("step %s: evaluation return %.4g%s", f"{step:,}", mean, spread)
        self.writer.scalars(step, {f"evaluation/{name}": value for name, value in values.items()})

    def on_track(self, step: int, values: dict[str, float], text: str) -> None:
        """Write how the last games stand in the band of other runs; `values` has return, low and high."""
        _LOG.info("step %s: %s", f"{step:,}", text)
        self.writer.scalars(step, {f"on_track/{name}": value for name, value in values.items()})
        self.writer.band(step, "on_track")

    def probe(self, step: int, tags: dict[str, float]) -> None:
        """Write what a probe found."""
        found = f"R2 of the ball's x {tags.get('probe/after_0/ball_x_r2', math.nan):.3g}"
        if (drawn := tags.get("probe/after_0/drawn")) is not None:  # there may be no decoder
            found += f", ball drawn in {100 * drawn:.1f} %"
        _LOG.info("step %s: %s", f"{step:,}", found)
        self.writer.scalars(step, tags)

    def animation(self, step: int, name: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Write frames (T, H, W, 3) as a TensorBoard animation and as `videos/<name>_step_<step>.mp4`."""
        # TensorBoard gets every n-th frame of a long episode: its animations are not streamed.
        self.writer.animation(step, f"video/{name}", frames[:: 1 + len(frames) // MAX_ANIMATION_FRAMES], fps)
        path = self._run_dir / VIDEOS / f"{name.replace('/', '_')}_step_{step:09d}.mp4"
        write_video(path, frames, fps)

    def open_loop(self, step: int, key: str, frames: NDArray[np.uint8]) -> None:
        """Write truth, prediction and error (T, 3 H, n W, 3) of an image as an animation and as a still."""
        name = f"open_loop/{key}"
        self.animation(step, name, frames, OPEN_LOOP_FPS)
        # Frames of the first sequence, evenly spaced in time; it is as wide as a third of the height.
        chosen = frames[np.linspace(0, len(frames) - 1, STRIP_FRAMES).round().astype(int)]
        strip = np.concatenate(list(chosen[:, :, : frames.shape[1] // 3]), axis=1)
        self.writer.image(step, f"image/{name}", strip)

    def close(self) -> None:
        """Close files and give the terminal back; a second call does nothing."""
        self._progress.close()
        self.writer.close()
