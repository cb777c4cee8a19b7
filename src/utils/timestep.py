"""The record: what environments deliver, replay stores and the model is trained on.

One record is one stored index t, in the arrival convention: the observation, the reward received on arriving
at it, its flags, and the action chosen after seeing it. The final observation of an episode is a record of
its own (`is_last`), whose action is zeros because it was never executed; the next record is the first
observation of the next episode (`is_first`, reward 0). An episode of n actions is n + 1 records.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape (without batch or time) and dtype of one observation."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def is_image(self) -> bool:
        """Whether this is a (height, width, channel) image of bytes."""
        return len(self.shape) == 3 and self.dtype == np.uint8

    @property
    def nbytes(self) -> int:
        """Bytes of one observation."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """Actions as the model sees them: one-hot vectors when discrete, numbers in [-1, 1] when continuous."""

    size: int
    """Width of the action vector: number of choices, or of continuous dimensions."""

    is_discrete: bool


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What a vector environment is made of, independent of any suite."""

    name: str
    """As the user knows it: `atari/pong`, `CartPole-v1`, `catch`."""

    observation: dict[str, ArraySpec]
    action: ActionSpec
    num_envs: int
    action_repeat: int
    """Emulator frames per agent step."""

    longest_episode: int | None = None
    """Most steps of an episode, or None where nothing bounds it."""

    notices: tuple[str, ...] = ()
    """What a user may not expect of how observations are delivered, a sentence each."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What arrives from N environments at once: row i is environment i's next record, without its action yet.

    Every array owns its memory; an environment never writes into it again.
    """

    observation: dict[str, NDArray]
    """(N, *shape) in the dtype of the spec."""

    reward: NDArray[np.float32]
    """(N,) received on arriving here, raw units; 0 where `is_first`."""

    is_first: NDArray[np.bool_]
    """(N,) first observation of an episode."""

    is_last: NDArray[np.bool_]
    """(N,) final observation of an episode, terminated or truncated."""

    is_terminal: NDArray[np.bool_]
    """(N,) terminated: there is no future to bootstrap from. Never true for a truncation alone."""
