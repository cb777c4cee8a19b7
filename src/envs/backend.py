"""What a suite has to offer: N environments that start, act or rest as told, and remember nothing."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..utils.timestep import EnvSpec


class EnvironmentFailed(RuntimeError):
    """One environment gave no record; `str` says why, as in 'its process died'."""

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.details = details
        """Traceback of the environment, if it raised."""

    def told_of(self, name: str, index: int, and_then: str = "") -> str:
        """Return the whole message about environment `index` of `name`."""
        return f"{name}: environment {index} failed: {self}.{and_then}\n{self.details}".rstrip()


class EnvironmentCrashed(RuntimeError):
    """Environments failed beyond `env.max_restarts`; the message names the environment and its index."""


@dataclass(slots=True)
class Outcome:
    """What N environments answered to one call; the rows of those that rested or failed mean nothing."""

    observation: dict[str, NDArray]
    """(N, *shape) in the dtype of the spec; memory of its own."""

    reward: NDArray
    """(N,) raw units."""

    is_terminated: NDArray[np.bool_]
    """(N,)"""

    is_truncated: NDArray[np.bool_]
    """(N,)"""

    failures: dict[int, EnvironmentFailed] = field(default_factory=dict)
    """By index, the environments that gave no record."""

    @classmethod
    def empty(cls, spec: EnvSpec) -> "Outcome":
        """Return zeros for all environments of `spec`."""
        size = spec.num_envs
        return cls(
            observation={
                key: np.zeros((size, *part.shape), part.dtype) for key, part in spec.observation.items()
            },
            reward=np.zeros(size),
            is_terminated=np.zeros(size, np.bool_),
            is_truncated=np.zeros(size, np.bool_),
        )

    def put(
        self, index: int, observation: dict[str, NDArray], reward: float, terminated: bool, truncated: bool
    ) -> None:
        """Fill the row of environment `index`."""
        for key, value in observation.items():
            self.observation[key][index] = value
        self.reward[index] = reward
        self.is_terminated[index], self.is_truncated[index] = terminated, truncated

    @property
    def is_over(self) -> NDArray[np.bool_]:
        """(N,) whether the episode ended here."""
        return self.is_terminated | self.is_truncated


class Simulators(Protocol):
    """N environments of one suite.

    An environment is in the state that its last seed and the actions since then lead to, and in no other.
    """

    @property
    def spec(self) -> EnvSpec:
        """What the environments observe and accept."""
        ...

    def advance(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> Outcome:
        """Start an episode in some environments and act in the others.

        Args:
            action: (N, A) float32; rows of environments that start or rest are ignored.
            seeds: By index, the seeds of the episodes that start in this call.
            idle: Environments whose answer is not wanted; whatever they do, their next call is a start.
        """
        ...

    def replace(self, index: int) -> None:
        """Put a new environment in the place of one that failed; its next call must be a start."""
        ...

    def render(self) -> NDArray[np.uint8] | None:
        """Return a (height, width, 3) picture of environment 0, or None where it was not made to render."""
        ...

    def close(self) -> None:
        """Release emulators and processes; may be called twice."""
        ...
