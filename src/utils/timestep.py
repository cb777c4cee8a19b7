"""Time steps of environments, in the format that environments return and the replay buffer stores.

A record is one stored index t in the arrival convention. It consists of an observation, the reward received
on arrival, its flags, and the action chosen after seeing it. The final observation of an episode is a
separate record (`is_last`) with zeros as its action. The next record is the first observation of the next
episode (`is_first`, reward 0). An episode of n actions has n + 1 records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .units import count_text

_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape (without batch or time) and dtype of one observation."""

    shape: tuple[int, ...]
    dtype: np.dtype = _FLOAT32

    @property
    def is_image(self) -> bool:
        """Whether this is a (height, width, channel) image of bytes."""
        return len(self.shape) == 3 and self.dtype == np.uint8

    @property
    def nbytes(self) -> int:
        """Size of one observation in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """The model's action format: one-hot vectors if discrete, numbers in [-1, 1] if continuous."""

    size: int
    """Width of the action vector: the number of choices (summed over parts) or continuous dimensions."""

    is_discrete: bool

    parts: tuple[int, ...] = ()
    """Number of choices of each part of a multi-discrete action, or () for other actions. The vector is the
    concatenation of one-hot blocks."""

    @property
    def text(self) -> str:
        """Readable description of the action space.

        >>> ActionSpec(4, is_discrete=True).text, ActionSpec(1, is_discrete=False).text
        ('one of 4', '1 number in [-1, 1]')
        >>> ActionSpec(5, is_discrete=True, parts=(2, 3)).text
        'one of 2 and one of 3'
        """
        if self.is_discrete:
            return " and ".join(f"one of {count}" for count in self.parts or (self.size,))
        return f"{count_text(self.size, 'number')} in [-1, 1]"

    @property
    def is_onehot(self) -> bool:
        """Whether an action is a single one-hot vector."""
        return self.is_discrete and not self.parts


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Names, shapes and limits of a vector environment from any suite."""

    name: str
    """Name in user settings: `atari/pong`, `CartPole-v1`, `catch`."""

    observation: dict[str, ArraySpec]
    action: ActionSpec
    num_envs: int = 1
    action_repeat: int = 1
    """Emulator frames per agent step."""

    longest_episode: int | None = None
    """Maximum number of steps per episode, or `None` without a limit."""

    notices: tuple[str, ...] = ()
    """One sentence for each conversion of observations that may be unexpected."""

    renders: bool = False
    """Whether the environment can be created with `render_mode="rgb_array"`."""

    info: tuple[str, ...] = ()
    """Keys of `TimeStep.info`."""

    @property
    def observation_text(self) -> str:
        """Readable description of the observation space: the name, dtype and shape of each part."""
        shapes = {name: "x".join(map(str, part.shape)) for name, part in self.observation.items()}
        return ", ".join(f"{name} {part.dtype} {shapes[name]}" for name, part in self.observation.items())

    @property
    def has_image(self) -> bool:
        """Whether an observation is an image."""
        return any(part.is_image for part in self.observation.values())


@dataclass(frozen=True, slots=True)
class TimeStep:
    """The next record of all N environments, without the action. Row i belongs to environment i.

    Every array owns its memory. Environments never modify a step after returning it, except for tensors: the
    next call of `step` may overwrite those.
    """

    observation: dict[str, Any]
    """Arrays or tensors (N, *shape) by key, in the dtypes of the spec. Tensors are on the device of the
    environment."""

    reward: NDArray[np.float32]
    """Rewards (N,) received on arrival, in raw units. They are 0 where `is_first` is set."""

    is_first: NDArray[np.bool_]
    """Whether each record is the first observation of an episode, (N,)."""

    is_last: NDArray[np.bool_]
    """Whether each record is the final observation of a terminated or truncated episode, (N,)."""

    is_terminal: NDArray[np.bool_]
    """Whether each episode terminated, (N,), so that its return is not bootstrapped. False if truncated."""

    envs: NDArray[np.int64] | None = None
    """Environments of the rows if a step has only the final records of some environments, in rising order.
    These need no actions. The first records of their next episodes are in the following step."""

    info: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Numbers (N,) by name that the environments report with the last step of an episode. Missing numbers
    are NaN."""

    failed: tuple[int, ...] = ()
    """Rows of episodes that were cut off because the environment failed or could not be restored. Such an
    episode has no return."""

    @classmethod
    def empty(cls, spec: EnvSpec) -> "TimeStep":
        """Return a step of zeros for all environments of `spec`."""
        size = spec.num_envs
        shown = {key: np.zeros((size, *part.shape), part.dtype) for key, part in spec.observation.items()}
        is_first, is_last, is_terminal = (np.zeros(size, np.bool_) for _ in range(3))
        info = {name: np.full(size, np.nan) for name in spec.info}
        return cls(shown, np.zeros(size, np.float32), is_first, is_last, is_terminal, info=info)

    @property
    def nbytes(self) -> int:
        """Total size of all arrays in bytes."""
        rows = (self.reward, self.is_first, self.is_last, self.is_terminal, *self.info.values())
        return sum(array.nbytes for array in (*self.observation.values(), *rows))

    def arrays(self) -> dict[str, Any]:
        """Return the fields of complete steps by name, for a checkpoint. `EpisodeLog` keeps `failed`."""
        names = [each.name for each in fields(self) if each.name not in ("envs", "failed")]
        return {name: getattr(self, name) for name in names}

    def set_observation(self, index: int, observation: Mapping[str, NDArray]) -> None:
        """Write the observation of environment `index`."""
        for key, value in observation.items():
            self.observation[key][index] = value
