"""Evaluate a policy on complete episodes."""

import math
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..envs import EnvConfig, make_environment
from ..envs.episodes import Episode, EpisodeRecorder, EpisodeTracker
from ..utils.seeding import named_seed
from ..workflows import Agent
from .reports import VIDEO_SIDE


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of an evaluation."""

    episodes: list[Episode]
    """Finished episodes, in the order in which they ended."""

    still_open: list[Episode]
    """Unfinished episodes, if the evaluation stopped early."""

    frames: NDArray[np.uint8] | None
    """(T, H, W, 3) uint8 frames of environment 0's first (possibly unfinished) episode, if recorded."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean([episode.episode_return for episode in self.episodes]))

    @property
    def info(self) -> dict[str, float]:
        """Mean of each number in `Episode.info`, over the episodes that reported it."""
        names = dict.fromkeys(name for episode in self.episodes for name in episode.info)
        found = {name: [each.info[name] for each in self.episodes if name in each.info] for name in names}
        return {name: float(np.mean(numbers)) for name, numbers in found.items()}

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean return, or `None` for a single episode."""
        returns = [episode.episode_return for episode in self.episodes]
        return float(np.std(returns, ddof=1) / math.sqrt(len(returns))) if len(returns) > 1 else None


def evaluate(
    workflow: Agent,
    env: EnvConfig,
    episodes: int,
    seed: int,
    sample: bool = True,
    record: bool = False,
    should_stop: Callable[[int, list[Episode]], bool] = lambda finished, still_open: False,
) -> Evaluation:
    """Play `episodes` complete episodes with a policy that shares only its parameters with training.

    The number of episodes per environment is fixed, because counting the first ones to finish would favor
    short episodes. If an environment fails, another episode replaces the one that it cut off. `should_stop`
    can end the evaluation early. It receives the number of finished episodes and the partial results of the
    open ones.
    """
    # With this derived seed, training never plays the same episodes.
    seed = named_seed(seed, "evaluate")
    num_envs = min(env.num_envs, episodes)
    quota = [episodes // num_envs + (i < episodes % num_envs) for i in range(num_envs)]
    finished: list[Episode] = []
    frames = None
    with closing(make_environment(replace(env, num_envs=num_envs), seed, record)) as environment:
        policy, tracker = workflow.eval_policy(num_envs, seed, sample), EpisodeTracker(num_envs)
        recorder = EpisodeRecorder(environment.spec, sys.maxsize, environment.render, VIDEO_SIDE)
        if record:
            recorder.request()
        step = environment.reset()
        while True:
            for episode in tracker.add(step, step.envs):
                if quota[episode.env]:
                    quota[episode.env] -= 1
                    finished.append(episode)
            # Final records alone may be those of other environments.
            recorded = recorder.add(step) if step.envs is None or step.envs[0] == 0 else None
            frames = recorded if recorded is not None else frames
            still_open = [one for one in tracker.open_episodes(step) if quota[one.env]]
            if not any(quota) or should_stop(len(finished), still_open):
                return Evaluation(finished, still_open, recorder.cut() if frames is None else frames)
            step = environment.step(policy.act(step))
