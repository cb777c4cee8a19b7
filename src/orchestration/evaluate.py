"""Playing a policy without learning: during training, and `reverie-evaluate` for a checkpoint."""

import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..envs import EnvConfig, make_environment
from ..utils.errors import UserError, exit_on_user_error
from ..utils.records import EnvSpec
from ..utils.seeding import named_seed
from ..utils.video import require_video_path, save_video, upscale
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

"""


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
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed must be in [0, 2**32), got {self.seed}.")
        if self.video is not None:
            require_video_path(Path(self.video))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Finished episodes in the order they ended, and the frames of one of them."""

    episodes: list[Episode]
    frames: NDArray[np.uint8] | None
    """(T, H, W, 3) uint8 of environment 0's first episode, if recorded and there is an image."""

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
    abandon: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Play `episodes` whole episodes with a policy that shares nothing with training but parameters.

    Each environment plays a fixed number of episodes: taking the first to finish would favour short ones.
    Fewer episodes come back once `abandon`, which is asked before every step, returns True.
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
            if not any(quota) or abandon():
                return Evaluation(finished, frames)
            arrival = environment.step(player.act(arrival))


def evaluate_run(config: EvaluateConfig) -> dict[str, object]:
    """Play the newest checkpoint of a run and return what `reverie-evaluate` prints."""
    assert config.run is not None
    run = load_run(config.run, device=config.device)
    run.compile = Compile.none  # nothing is learned
    checkpoint = checkpoint_of(run, Path(config.run))
    workflow = _load_workflow(run, checkpoint)
    if config.video is not None:
        _check_video(Path(config.video), workflow.env)
    policy = PolicyMode.mode if run.workflow is WorkflowName.population else config.policy
    sample = policy is PolicyMode.sample
    result = evaluate(
        workflow, run.env, config.episodes, config.seed, sample, record=config.video is not None
    )
    if config.video is not None and result.frames is not None:
        enlarged = (upscale(frame, VIDEO_SCALE) for frame in result.frames)
        save_video(Path(config.video), enlarged, VIDEO_FPS)
    return {
        "run": config.run,
        "step": checkpoint.step,
        "environment": workflow.env.name,
        "policy": policy.value,
        "seed": config.seed,
        "returns": [episode.episode_return for episode in result.episodes],
        "lengths": [episode.length for episode in result.episodes],
        "mean": result.mean,
        "standard_error": result.standard_error,
    }


def main() -> None:
    """Run `reverie-evaluate run=<folder> [episodes= seed= policy= video= device=]`."""
    arguments = sys.argv[1:]
    if asks_for_help(arguments):
        sys.stdout.write(_USAGE + settings_help(EvaluateConfig))
        return
    with exit_on_user_error():
        result = evaluate_run(read_settings(EvaluateConfig, arguments, "evaluate"))
        sys.stdout.write(json.dumps(result) + "\n")


def _check_video(path: Path, env: EnvSpec) -> None:
    """Refuse a video that could not be written, before hours of play."""
    if not any(spec.is_image for spec in env.observation.values()):
        raise UserError(f"video={path}: {env.name} has no image observation to record. Leave video= out.")
    folder = path.absolute().parent
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"video={path} cannot be written: {existing} is not a folder that can be written to.")


def _load_workflow(run: TrainConfig, checkpoint: Checkpoint) -> DreamerWorkflow | ERLWorkflow:
    is_population = run.workflow is WorkflowName.population
    with closing(make_environment(replace(run.env, num_envs=1), run.seed)) as environment:
        spec = environment.spec
        workflow = build_erl(run, spec) if is_population else build_workflow(run, spec)
    checkpoint.restore_workflow(workflow)
    return workflow
