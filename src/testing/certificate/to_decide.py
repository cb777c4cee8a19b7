"""How long a run has to be for a verdict on what a shorter one left open."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...config.dreamer import DreamerTrainConfig
from ...config.schema import TrainConfig
from ...memory.leaks.verdict import MIN_SAMPLES


@dataclass(frozen=True, slots=True)
class ToDecide:
    """A longer run, and why it takes one."""

    steps: int
    """Its agent steps."""

    settings: str
    """What to type for it."""

    samples: int
    """Samples that the run at hand was judged by."""

    judged_from: int
    """The step after which they lie."""

    def text(self) -> str:
        """Return both in a sentence each."""
        lie = f"{self.samples} samples after step {self.judged_from:,}"
        if self.samples < MIN_SAMPLES:
            return f"{lie}, a verdict takes {MIN_SAMPLES}. Repeat it with {self.settings}."
        return f"{lie} neither rest nor grow in order. Repeat it with {self.settings}, twice as many."


def to_decide(config: TrainConfig, steps: NDArray[np.int64], judged_from: int) -> ToDecide:
    """Return the run that has 24 samples to judge, or twice those that were there.

    Args:
        config: The run that was judged.
        steps: Steps of its samples, at least one.
        judged_from: The step after which they count.
    """
    samples = int((steps > judged_from).sum())
    wanted = 1 + (MIN_SAMPLES if samples < MIN_SAMPLES else 2 * samples)  # 1: what is due comes a little late
    if not isinstance(config, DreamerTrainConfig):
        generations = len(steps) - samples + wanted
        end = math.ceil(generations * int(steps[-1]) / len(steps))
        return ToDecide(end, f"training.generations={generations} certify.steps=null", samples, judged_from)
    training = config.training
    spacing = max(training.log_interval, config.env.num_envs)
    first_times = (training.video_interval, training.evaluation_interval, training.checkpoint_interval)
    begin, end = judged_from, judged_from + wanted * spacing
    for due in sorted([max(training.warmup_steps, training.learning_starts), *first_times]):
        if begin < due < end:  # a first time that the longer run reaches: it is judged after that
            begin, end = due, due + wanted * spacing
    return ToDecide(end, f"certify.steps={end}", samples, judged_from)
