"""The interface of a suite: N environments that start, act or rest on request and keep no history."""

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..utils.timestep import EnvSpec, TimeStep


class EnvironmentFailed(RuntimeError):
    """One environment gave no record; `str` says why, as in 'its process died'."""

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.details = details
        """Traceback of the environment, if it raised."""

    def format_message(self, name: str, index: int, and_then: str = "") -> str:
        """Return the whole message about environment `index` of `name`."""
        return f"{name}: environment {index} failed: {self}.{and_then}\n{self.details}".rstrip()


class EnvironmentCrashed(RuntimeError):
    """More environments failed than `env.max_restarts` allows; the message names the last one."""


Failures = dict[int, EnvironmentFailed]
"""The environments that gave no record, by index."""


class EnvBackend(Protocol):
    """N environments of one suite.

    The state of an environment follows from its last seed and the actions since then, and from nothing else.
    """

    @property
    def spec(self) -> EnvSpec:
        """Shapes of observations and actions."""
        ...

    def step_or_reset(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> tuple[TimeStep, Failures]:
        """Start an episode in some environments and act in the others.

        Args:
            action: (N, A) float32; rows of environments that start or rest are ignored.
            seeds: By index, the seeds of the episodes that start in this call.
            idle: Environments whose record is not wanted. Whatever they do, their next call must be a start.

        Returns:
            The records, and the failures. Rows of environments that rest or fail are undefined, except for
            `is_first`, which marks every start.
        """
        ...

    def replace(self, index: int) -> None:
        """Replace an environment that failed by a new one; its next call must be a start."""
        ...

    def render(self) -> NDArray[np.uint8] | None:
        """Return a (height, width, 3) picture of environment 0; None if it was not made to render."""
        ...

    def close(self) -> None:
        """Release emulators and processes; may be called twice."""
        ...
