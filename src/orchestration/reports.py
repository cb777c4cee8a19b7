"""Output of a run: scalars, episodes, animations and progress."""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..config.schema import TrainConfig
from ..envs.episodes import Episode
from ..utils.logging.config import ProgressMode
from ..utils.logging.console import LEARNING, Progress
from ..utils.logging.writer import MetricsWriter
from ..utils.state_files import check_structure
from ..utils.timestep import EnvSpec
from ..utils.video import save_video, upscale
from .threads import PaceWatch

_LOG = logging.getLogger(__name__)
VIDEOS = "videos"
# An Atari agent step is 4 frames at 60 Hz.
VIDEO_FPS = 15
# Small frames are upscaled to this side length in pixels.
VIDEO_SIDE = 256
MAX_ANIMATION_FRAMES = 300
RECENT = 20
"""Number of finished episodes over which recent means are computed."""


def write_video(path: Path, frames: NDArray[np.uint8], fps: float = VIDEO_FPS) -> None:
    """Write frames (T, H, W, 3) as a video, upscaling them if they are small."""
    scale = max(1, VIDEO_SIDE // max(frames.shape[1:3]))
    save_video(path, (upscale(frame, scale) for frame in frames), fps)


def no_pictures(env: EnvSpec) -> str:
    """Return why videos of this environment are not available."""
    return f'{env.name} has no image observation, and no `rgb_array` in metadata["render_modes"]'


class Reports:
    """Writes a run's metrics to its logs, its videos to `videos/`, and its progress to the terminal.

    A resumed run discards log entries after `resume_step`, the step of its checkpoint. `planned_mb` is the
    planned host and GPU memory in MB (1e6 bytes).
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
        total_steps = config.training.total_timesteps
        self.progress = Progress(total_steps, progress, resume_step or 0, spec.action_repeat)
        self.planned_mb = planned_mb
        self._threads = config.threads or torch.get_num_threads()
        self.recent: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=RECENT))
        """The last values of finished training episodes: `return`, and `info/<name>` for each number."""

        self._unseen = config.env.info

        self._since = (time.monotonic(), resume_step or 0, 0)
        self._has_noted = False
        self._pace, self._has_one_phase = PaceWatch(), True

    def episode(self, step: int, episode: Episode) -> None:
        """Write a finished training episode."""
        if missing := [name for name in self._unseen if name not in episode.info]:
            text = "env.info=[%s]: not found among the numbers in info at the first episode's last step"
            _LOG.warning(text, ",".join(missing))
        self._unseen = []
        info = {f"info/{name}": number for name, number in episode.info.items()}
        for name, value in ({"return": episode.episode_return} | info).items():
            self.recent[name].append(value)
        values = {"episode/return": episode.episode_return, "episode/length": float(episode.length)}
        self.writer.scalars(step, values | info)

    def recent_state(self) -> dict[str, NDArray[np.float64]]:
        """Return the recent values for a checkpoint."""
        return {name: np.array(values) for name, values in self.recent.items()}

    def load_recent(self, state: Mapping[str, Any]) -> None:
        """Load a result of `recent_state`. Raise `ValueError` if its structure is invalid."""
        check_structure(state, {name: np.zeros(min(len(values), RECENT)) for name, values in state.items()})
        for name, values in state.items():
            self.recent[name].extend(values.tolist())

    def interval(self, step: int, updates: int, metrics: dict[str, float]) -> None:
        """Write the metrics of a log interval together with this process's speeds, and show progress."""
        speeds = self._speeds(step, updates)
        means = {f"recent/{name}": float(np.mean(values)) for name, values in self.recent.items()}
        if returns := self.recent.get("return"):
            means["recent/episodes"] = len(returns)
        self.writer.scalars(step, metrics | speeds | means)
        self.progress.update(
            step,
            returns=returns or (),
            updates_per_second=speeds["speed/updates_per_second"],
            memory_mb=metrics["debug/cpu/rss_mb"] + metrics.get("debug/gpu/reserved_mb", 0.0),
            planned_mb=self.planned_mb,
        )
        if self._has_one_phase:
            self._watch_pace(speeds, metrics["time/update_fraction"])
        self._has_one_phase = True

    def generation(
        self, step: int, updates: int, metrics: dict[str, float], block: list[str], until: int | None
    ) -> None:
        """Write the metrics of a generation together with its speeds, and print its block of lines.

        `until` is the step at which members start learning, or `None` once they have started.
        """
        speeds = self._speeds(step, updates)
        self.writer.scalars(step, metrics | speeds)
        self.advance(step, updates, LEARNING if until is None else "filling the replay", until)
        for line in block:
            _LOG.info(line)
        self._watch_pace(speeds, metrics["time/learn_fraction"])

    def _watch_pace(self, speeds: dict[str, float], fraction: float) -> None:
        """Suggest a single thread if updates have slowed to half their earlier speed.

        `fraction` is the fraction of the time spent in updates.
        """
        if self._threads == 1 or not fraction:
            return
        if self._pace.has_halved(speeds["speed/updates_per_second"] / fraction):
            _LOG.warning(
                "updates take twice as long as earlier in this run. If other programs are using the CPUs, "
                "stop the run and resume it with threads=1 (now %d).",
                self._threads,
            )

    def _speeds(self, step: int, updates: int) -> dict[str, float]:
        """Return the environment steps so far, and the speeds since the last call."""
        now, (then, then_step, then_updates) = time.monotonic(), self._since
        self._since = (now, step, updates)
        seconds = max(now - then, 1e-9)
        return {
            "env_steps": step * self._action_repeat,
            "speed/steps_per_second": (step - then_step) / seconds,
            "speed/frames_per_second": (step - then_step) * self._action_repeat / seconds,
            "speed/updates_per_second": (updates - then_updates) / seconds,
        }

    def advance(self, step: int, updates: int, phase: str, until: int | None = None) -> None:
        """Update the progress bar with `Progress.advance`."""
        self._has_one_phase &= until is None
        self.progress.advance(step, updates, phase, until)

    @contextmanager
    def doing(self, words: str) -> Iterator[None]:
        """Show an activity on the progress line for the duration of the `with` block."""
        self.progress.set_status(words)
        try:
            yield
        finally:
            self.progress.set_status(None)

    def note(self, words: str | None) -> None:
        """Show a one-time activity on the progress line, or clear it with `None`."""
        if words and not self._has_noted:
            _LOG.info("%s (once, may take a minute)", words)
            self._has_noted = True
        self.progress.set_status(words, is_once=True)

    def animation(self, step: int, name: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Write frames (T, H, W, 3) as a TensorBoard animation and as `videos/<name>_step_<step>.mp4`."""
        # TensorBoard does not stream animations, so it receives only every n-th frame of a long episode.
        self.writer.animation(step, f"video/{name}", frames[:: 1 + len(frames) // MAX_ANIMATION_FRAMES], fps)
        path = self._run_dir / VIDEOS / f"{name.replace('/', '_')}_step_{step:09d}.mp4"
        write_video(path, frames, fps)

    def close(self) -> None:
        """Close files and restore the terminal. Repeated calls have no effect."""
        self.progress.close()
        self.writer.close()
