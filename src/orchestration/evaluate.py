"""Playing a policy without learning: during training, and `reverie-evaluate` for a checkpoint."""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..envs import EnvConfig, EnvironmentCrashed, make_environment
from ..utils.errors import UserError, exit_on_user_error
from ..utils.records import EnvSpec
from ..utils.seeding import named_seed
from ..utils.video import require_video_path, save_video, unfinished, upscale
from ..workflows import Learner
from ..workflows.population import ERLWorkflow
from ..workflows.world_models import DreamerWorkflow
from .build import build_erl, build_workflow
from .checkpoint import Checkpoint
from .config import Compile, Device, TrainConfig, WorkflowName
from .episodes import Episode, EpisodeRecorder, EpisodeTracker
from .made_with import checkpoint_of
from .own_settings import asks_for_help, read_settings, settings_help
from .reports import VIDEO_FPS, VIDEO_SCALE
from .run_folder import load_run

_USAGE = """\
Play the newest checkpoint of a run, without learning: reverie-evaluate run=<folder> [key=value ...]

  reverie-evaluate run=experiments/<run>                   one line of JSON: returns, lengths, mean
  reverie-evaluate run=experiments/<run> video=play.mp4    and a video of the first episode

Ctrl-C ends it with what was played so far, open episodes included, and exit code 130.

"""
_PROGRESS_SECONDS = 10.0
INTERRUPTED_EXIT_CODE = 130


class PolicyMode(Enum):
    """How evaluation acts; OmegaConf matches names, so the names are what users type."""

    sample = "sample"
    mode = "mode"


@dataclass(kw_only=True, slots=True)
class EvaluateConfig:
    """Settings of `reverie-evaluate`, typed as key=value."""

    run: str | None = None
    """Folder of the run to play."""

    episodes: int = 20
    """Episodes to play."""

    max_steps: int | None = None
    """Steps after which an episode is cut; null leaves them as long as the environment does."""

    seed: int = 0
    """Seed of episodes and policy; training with the same seed plays other episodes."""

    policy: PolicyMode = PolicyMode.sample
    """`sample` acts as in training; `mode` takes the likeliest action. A population is always played in
    `mode`: its policies have one action each."""

    video: str | None = None
    """File (.mp4 or .gif) for the first episode; image observations only."""

    device: Device = Device.auto
    """Where the networks live."""

    def __post_init__(self) -> None:
        if not self.run:
            raise UserError("run is missing: name the folder of a run, as in run=experiments/<run>.")
        if self.episodes < 1:
            raise UserError(f"episodes must be at least 1, got {self.episodes}.")
        if self.max_steps is not None and self.max_steps < 1:
            raise UserError(f"max_steps must be at least 1, got {self.max_steps}.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed must be in [0, 2**32), got {self.seed}.")
        if self.video is not None:
            require_video_path(Path(self.video))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Finished episodes in the order they ended, those open when it was abandoned, and the frames of one."""

    episodes: list[Episode]
    still_open: list[Episode]
    frames: NDArray[np.uint8] | None
    """(T, H, W, 3) uint8 of environment 0's first episode, as far as it was played, if recorded."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean([episode.episode_return for episode in self.episodes]))

    @property
    def standard_error(self) -> float:
        """Standard error of the mean return; 0 for a single episode."""
        returns = [episode.episode_return for episode in self.episodes]
        return float(np.std(returns, ddof=1) / math.sqrt(len(returns))) if len(returns) > 1 else 0.0


def evaluate(
    workflow: Learner,
    env: EnvConfig,
    episodes: int,
    seed: int,
    sample: bool = True,
    record: bool = False,
    abandon: Callable[[int, list[Episode]], bool] = lambda finished, still_open: False,
) -> Evaluation:
    """Play `episodes` whole episodes with a policy that shares nothing with training but parameters.

    Each environment plays a fixed number of episodes: taking the first to finish would favour short ones.
    Fewer episodes come back once `abandon` returns True; before every step it is asked with the number of
    finished episodes and the sums of those that are open.
    """
    seed = named_seed(seed, "evaluate")  # episodes that no training run with the same seed plays
    num_envs = min(env.num_envs, episodes)
    quota = [episodes // num_envs + (i < episodes % num_envs) for i in range(num_envs)]
    finished: list[Episode] = []
    frames = None
    with closing(make_environment(replace(env, num_envs=num_envs), seed)) as environment:
        player, tracker = workflow.player(num_envs, seed, sample), EpisodeTracker(num_envs)
        recorder = EpisodeRecorder(environment.spec, max_frames=sys.maxsize)
        if record:
            recorder.request()
        arrival = environment.reset()
        while True:
            for episode in tracker.add(arrival):
                if quota[episode.env]:
                    quota[episode.env] -= 1
                    finished.append(episode)
            recorded = recorder.add(arrival)
            frames = recorded if recorded is not None else frames
            still_open = [one for one in tracker.open_episodes(arrival) if quota[one.env]]
            if not any(quota) or abandon(len(finished), still_open):
                return Evaluation(finished, still_open, recorder.cut() if frames is None else frames)
            arrival = environment.step(player.act(arrival))


class _Watch:
    """Says on stderr how far an evaluation is, and lets Ctrl-C end it with what was played."""

    def __init__(self, episodes: int, bound: int | None) -> None:
        self._episodes = episodes
        self._hint = "" if bound else "; nothing ends one but the environment: max_steps= would"
        self._due = time.monotonic() + _PROGRESS_SECONDS
        self.is_interrupted = False

    def __call__(self, finished: int, still_open: list[Episode]) -> bool:
        """Return whether to end now."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _PROGRESS_SECONDS
            longest = max((episode.length for episode in still_open), default=0)
            print(
                f"{finished:,} of {self._episodes:,} episodes are played, an open one has {longest:,} steps"
                f"{self._hint}; Ctrl-C ends with these",
                file=sys.stderr,
            )
        return self.is_interrupted

    def interrupt(self, *_: object) -> None:
        """End before the next step; at once, if asked again."""
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.is_interrupted = True


def evaluate_run(config: EvaluateConfig) -> tuple[dict[str, object], NDArray[np.uint8] | None]:
    """Play the newest checkpoint of a run; return what `reverie-evaluate` prints, and an episode's frames."""
    assert config.run is not None
    run = load_run(config.run, device=config.device)
    run.compile = Compile.none  # nothing is learned
    checkpoint = checkpoint_of(run, Path(config.run))
    workflow = _load_workflow(run, checkpoint)
    if config.video is not None:
        _check_video(Path(config.video), workflow.env)
    policy = PolicyMode.mode if run.workflow is WorkflowName.population else config.policy
    sample = policy is PolicyMode.sample
    env = _cut(run.env, workflow.env, config.max_steps)
    watch = _Watch(config.episodes, config.max_steps or workflow.env.longest_episode)
    before = signal.signal(signal.SIGINT, watch.interrupt)
    try:
        is_recorded = config.video is not None
        result = evaluate(workflow, env, config.episodes, config.seed, sample, is_recorded, watch)
    except EnvironmentCrashed as error:
        raise UserError(str(error).partition("\n")[0]) from error
    finally:
        signal.signal(signal.SIGINT, before)
    shown: dict[str, object] = {
        "run": config.run,
        "step": checkpoint.step,
        "environment": workflow.env.name,
        "policy": policy.value,
        "seed": config.seed,
        "max_steps": config.max_steps,
        "returns": [episode.episode_return for episode in result.episodes],
        "lengths": [episode.length for episode in result.episodes],
        "mean": result.mean if result.episodes else None,
        "standard_error": result.standard_error if result.episodes else None,
    }
    if watch.is_interrupted:
        shown["open_returns"] = [episode.episode_return for episode in result.still_open]
        shown["open_lengths"] = [episode.length for episode in result.still_open]
    return shown, result.frames


@exit_on_user_error()
def main() -> None:
    """Run `reverie-evaluate run=<folder> [episodes= max_steps= seed= policy= video= device=]`."""
    arguments = sys.argv[1:]
    if asks_for_help(arguments):
        sys.stdout.write(_USAGE + settings_help(EvaluateConfig))
        return
    config = read_settings(EvaluateConfig, arguments, "evaluate")
    result, frames = evaluate_run(config)
    print(json.dumps(result), flush=True)  # first: the video may fail
    if config.video is not None and frames is not None:
        try:
            save_video(Path(config.video), (upscale(frame, VIDEO_SCALE) for frame in frames), VIDEO_FPS)
        except OSError as error:
            raise UserError(f"video={config.video} cannot be written: {error.strerror}.") from error
    if "open_returns" in result:
        raise SystemExit(INTERRUPTED_EXIT_CODE)


def _cut(env: EnvConfig, spec: EnvSpec, max_steps: int | None) -> EnvConfig:
    """Return the environments with a limit of `max_steps`, unless theirs is lower."""
    if max_steps is None or (spec.longest_episode is not None and spec.longest_episode <= max_steps):
        return env
    frames = max_steps * env.action_repeat
    return replace(env, time_limit=frames, max_episode_frames=frames)


def _check_video(path: Path, env: EnvSpec) -> None:
    """Refuse a video that could not be written, before hours of play."""
    if not any(spec.is_image for spec in env.observation.values()):
        raise UserError(f"video={path}: {env.name} has no image observation to record. Leave video= out.")
    try:
        folder = path.absolute().parent
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        for part in (*path.parts, unfinished(path).name):
            (existing / part).exists()  # raises for a name that is too long
        is_folder = path.is_dir()
    except OSError as error:
        raise UserError(f"video={path} cannot be written: {error.strerror}.") from error
    if is_folder:
        raise UserError(f"video={path} cannot be written: it is a folder.")
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"video={path} cannot be written: {existing} is not a folder that can be written to.")


def _load_workflow(run: TrainConfig, checkpoint: Checkpoint) -> DreamerWorkflow | ERLWorkflow:
    is_population = run.workflow is WorkflowName.population
    with closing(make_environment(replace(run.env, num_envs=1), run.seed)) as environment:
        spec = environment.spec
        workflow = build_erl(run, spec) if is_population else build_workflow(run, spec)
    checkpoint.restore_workflow(workflow)
    return workflow
