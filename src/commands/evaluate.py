"""Evaluate a checkpoint of a run: reverie-evaluate run=<folder> [key=value ...].

  reverie-evaluate run=experiments/<run>                   the mean return of 20 episodes
  reverie-evaluate run=experiments/<run> video=play.mp4    also record a video of the first episode
  reverie-evaluate run=experiments/<run> checkpoint=best   the checkpoint with the best evaluation so far
  reverie-evaluate run=pretrained:pong episodes=10         an agent included in the package
  reverie-evaluate run=experiments/<run> json=true         one line of JSON: returns, lengths, mean

On a terminal the output is a sentence. In a pipe or file it is JSON.
Press Ctrl-C to stop with the results so far, including unfinished episodes (exit code 130).
"""

import json
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import envs, orchestration, workflows
from ..config.schema import Device, TrainConfig, WhichCheckpoint
from ..envs import EnvConfig
from ..utils.errors import UserError, exit_on_user_error, require_range, require_seed
from ..utils.timestep import EnvSpec
from ..utils.units import count_text
from .entry import load
from .options import own_settings

_PROGRESS_SECONDS = 10.0
INTERRUPTED_EXIT_CODE = 130


class PolicyMode(Enum):
    """How actions are selected during evaluation."""

    sample = "sample"
    mode = "mode"


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    """Settings of `reverie-evaluate`, written as key=value."""

    run: str
    """Run folder, folder with weights and configuration, `pretrained:<name>` or `hub:<owner>/<name>`."""

    episodes: int = 20
    """Number of episodes."""

    checkpoint: WhichCheckpoint = WhichCheckpoint.newest
    """Checkpoint of the run. `best` is the one with the best evaluation, or with the best fitness of a
    population."""

    max_steps: int | None = None
    """Maximum number of steps per episode, or null for the environment's own limit."""

    seed: int = 0
    """Seed of the episodes and the policy. Training with the same seed uses different episodes."""

    policy: PolicyMode = PolicyMode.sample
    """`sample` draws actions at random as in training, and `mode` selects the most likely one. Populations
    always use `mode`, because their policies are deterministic."""

    video: str | None = None
    """File (.mp4 or .gif) for a video of the first episode, from its image observations or rendered
    frames."""

    device: Device = Device.auto
    """Device of the networks."""

    json: bool = False
    """Print a line of JSON even on a terminal."""

    trust: bool = False
    """Allow a copied or downloaded run to import the modules of its own classes."""

    def __post_init__(self) -> None:
        require_range("", self, "episodes", "max_steps", ge=1)
        require_seed(self.seed)
        if self.video is not None:
            from ..utils.video import require_video_path

            require_video_path(Path(self.video))


class _Watch:
    """Reports the progress of an evaluation on stderr, and stops it after Ctrl-C."""

    def __init__(self, episodes: int, bound: int | None) -> None:
        self._episodes = episodes
        self._hint = "" if bound else " (episodes have no time limit, consider max_steps=)"
        self._due = time.monotonic() + _PROGRESS_SECONDS
        self.is_interrupted = False

    def __call__(self, finished: int, still_open: "list[envs.Episode]") -> bool:
        """Report progress from time to time. Return whether to stop now."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _PROGRESS_SECONDS
            longest = max((episode.length for episode in still_open), default=0)
            done = f"finished {finished:,} of {count_text(self._episodes, 'episode')}"
            steps = f"the current one has {count_text(longest, 'step')}{self._hint}"
            print(f"{done}, {steps}. Press Ctrl-C to stop.", file=sys.stderr)
        return self.is_interrupted

    def interrupt(self, *_: object) -> None:
        """Stop before the next step. The second call stops immediately."""
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.is_interrupted = True


def evaluate_run(
    config: EvaluateConfig, loaded: "tuple[TrainConfig, workflows.Agent, int | None] | None" = None
) -> tuple[dict[str, object], NDArray[np.uint8] | None]:
    """Evaluate a checkpoint of a run, or an agent that is already `loaded`.

    In the main thread, Ctrl-C ends the evaluation early.

    Returns:
        The result of `reverie-evaluate`, and the frames of the first episode.
    """
    chosen = config.checkpoint
    run, workflow, step = loaded or orchestration.load_agent(
        config.run, config.device, which=chosen, trust=config.trust
    )
    if config.video is not None:
        _check_video(Path(config.video), workflow.env)
    policy = config.policy if orchestration.recipe_of(run).samples_actions else PolicyMode.mode
    sample, is_recorded = policy is PolicyMode.sample, config.video is not None
    env = cut_episodes(run.env, workflow.env, config.max_steps)
    # Restarts are disabled, because the return of an episode with a crash is not valid.
    env = replace(env, max_restarts=0)
    watch = _Watch(config.episodes, config.max_steps or workflow.env.longest_episode)
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, watch.interrupt) if is_main else None
    try:
        result = orchestration.evaluate(
            workflow, env, config.episodes, config.seed, sample, is_recorded, watch
        )
    except envs.EnvironmentCrashed as error:
        raise UserError(str(error).partition("\n")[0]) from error
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    shown: dict[str, object] = {
        "run": config.run,
        "step": step,
        "environment": workflow.env.name,
        "policy": policy.value,
        "seed": config.seed,
        "max_steps": config.max_steps,
        "returns": [episode.episode_return for episode in result.episodes],
        "lengths": [episode.length for episode in result.episodes],
        "mean": result.mean if result.episodes else None,
        "standard_error": result.standard_error,
        "info": result.info,
    }
    if watch.is_interrupted:
        shown["open_returns"] = [episode.episode_return for episode in result.still_open]
        shown["open_lengths"] = [episode.length for episode in result.still_open]
    return shown, result.frames


@exit_on_user_error()
def main() -> None:
    """Run `reverie-evaluate` with the arguments of this process."""
    config, _ = own_settings(EvaluateConfig, sys.argv[1:], "reverie-evaluate", __doc__)
    # This imports torch, after the settings have been checked.
    load("..orchestration", "recipe_of")
    result, frames = evaluate_run(config)
    is_json = config.json or not sys.stdout.isatty()
    # Writing the video may fail, so print the result first.
    print(json.dumps(result) if is_json else _sentence(result, config.video), flush=True)
    if config.video is not None and frames is not None:
        try:
            orchestration.write_video(Path(config.video), frames)
        except OSError as error:
            raise UserError(f"video={config.video} cannot be written: {error.strerror}.") from error
    if "open_returns" in result:
        raise SystemExit(INTERRUPTED_EXIT_CODE)


def _sentence(result: dict[str, Any], video: str | None) -> str:
    """Return the means, the 95 % interval of the return (1.96 standard errors), and the video's path."""
    mean, error = result["mean"], result["standard_error"]
    score = "No mean return" if mean is None else f"Mean return {mean:.4g}"
    if error is not None:
        score += f" (95 % interval {mean - 1.96 * error:.4g} to {mean + 1.96 * error:.4g})"
    played = f"{count_text(len(result['returns']), 'episode')} of {result['environment']}"
    info = "".join(f" Mean {name}: {number:.4g}." for name, number in result["info"].items())
    return f"{score} over {played}{f'. Video of the first: {video}' if video else ''}.{info}"


def cut_episodes(env: EnvConfig, spec: EnvSpec, max_steps: int | None) -> EnvConfig:
    """Return the environment settings with at most `max_steps` per episode, or their own limit if lower."""
    if max_steps is None or (spec.longest_episode is not None and spec.longest_episode <= max_steps):
        return env
    frames = max_steps * env.action_repeat
    return replace(env, time_limit=frames, max_episode_frames=frames)


def _check_video(path: Path, env: EnvSpec) -> None:
    """Raise a `UserError` if the video is impossible, before a possibly long evaluation."""
    if not env.has_image and not env.renders:
        raise UserError(f"video={path}: {orchestration.no_pictures(env)}. Omit video=.")
    require_writable("video", path)


def require_writable(key: str, path: Path) -> None:
    """Raise a `UserError` if a path cannot be written."""
    reason = None
    try:
        existing = next(parent for parent in path.absolute().parents if parent.exists())
        for part in path.parts:
            with suppress(FileNotFoundError):
                # This raises an error if the name is too long.
                (existing / part).stat()
        if path.is_dir():
            reason = "it is a folder"
        # Only an attempt reveals a read-only disk, because root has permission everywhere.
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise UserError(f"{key}={path} cannot be written: {reason}.")
