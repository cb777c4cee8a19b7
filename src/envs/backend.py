"""Interface of an environment suite, and restarts of failed environments."""

import logging
from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..utils.timestep import EnvSpec, TimeStep

_LOG = logging.getLogger(__name__)


class EnvironmentFailed(RuntimeError):
    """An environment failed to return a record. `str(error)` is the reason, e.g. "its process died"."""

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.details = details
        """The environment's traceback, if it raised an exception."""

    def format_message(self, name: str, index: int, and_then: str = "") -> str:
        """Return the complete message for environment `index` of `name`."""
        return f"{name}: environment {index} failed: {self}.{and_then}\n{self.details}".rstrip()


class EnvironmentCrashed(RuntimeError):
    """More environments failed than `env.max_restarts` allows. The message describes the last failure."""


Failures = dict[int, EnvironmentFailed]
"""Failures by environment index."""


class EnvBackend(Protocol):
    """N environments of one suite. Each one's state is determined by its last seed and all later actions."""

    spec: EnvSpec

    def step_or_reset(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> tuple[TimeStep, Failures]:
        """Start an episode in some environments and act in the others.

        Args:
            action: (N, A) float32. Rows of starting or idle environments are ignored.
            seeds: Seeds of the episodes that start in this call, by environment index.
            idle: Environments to skip in this call. Their state is undefined until they start an episode.

        Returns:
            Records and failures. Rows of idle and failed environments are undefined except for `is_first`.
        """
        ...

    def replace(self, index: int) -> None:
        """Replace a failed environment with a new one. It must start an episode in the next call."""
        ...

    def render(self) -> NDArray[np.uint8] | None:
        """Return an image of environment 0, (height, width, 3), or `None` if rendering is not available.

        Raises:
            UserError: If rendering fails.
        """
        ...

    def close(self) -> None:
        """Release emulators and processes. Calling this again is safe."""
        ...


def require_shapes(observation: Mapping[str, NDArray], spec: EnvSpec) -> None:
    """Raise `EnvironmentFailed` if the parts or shapes of one converted observation differ from the spec."""
    if {key: each.shape for key, each in observation.items()} != {
        key: part.shape for key, part in spec.observation.items()
    }:
        raise EnvironmentFailed("its observation space has changed since it was created")


class Restarts:
    """Wraps `EnvBackend.step_or_reset` and replaces failed environments, up to `limit` times.

    `then` completes the warning by describing what happens to the open episode.
    """

    def __init__(self, backend: EnvBackend, limit: int, then: str) -> None:
        self._backend = backend
        self._limit, self._then = limit, then
        self._count = 0
        self._crash: str | None = None

    def step_or_reset(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> tuple[TimeStep, Failures]:
        """Start and act as `EnvBackend.step_or_reset` does. Retry failed starts in a new environment.

        Returns the failures of acting environments, which must start an episode next, and the final failures
        of starts.
        """
        step, failures = self._backend.step_or_reset(action, seeds, idle)
        failed = failures
        while failed:
            for index, failure in failed.items():
                self._replace(index, failure)
            failed_resets = {index: seeds[index] for index in failed if index in seeds}
            if not failed_resets or self._crash is not None:
                break
            others = [index for index in range(self._backend.spec.num_envs) if index not in failed_resets]
            retried, failed = self._backend.step_or_reset(action, failed_resets, others)
            for index in failed_resets.keys() - failed.keys():
                del failures[index]
                step.set_observation(index, {key: each[index] for key, each in retried.observation.items()})
        return step, failures

    def raise_if_crashed(self) -> None:
        """Close all environments and raise `EnvironmentCrashed` if the restarts are used up."""
        if self._crash is not None:
            self._backend.close()
            raise EnvironmentCrashed(self._crash)

    def _replace(self, index: int, failure: EnvironmentFailed) -> None:
        """Replace a failed environment. If the restarts are used up, set `_crash` to the error message."""
        name = self._backend.spec.name
        if self._count == self._limit:
            used_up = f" The limit env.max_restarts={self._limit} is reached."
            self._crash = self._crash or failure.format_message(name, index, used_up)
            return
        self._count += 1
        renewed = f" Replacing it (restart {self._count} of env.max_restarts={self._limit})."
        _LOG.warning("%s", failure.format_message(name, index, f"{renewed} Any open episode {self._then}."))
        self._backend.replace(index)
