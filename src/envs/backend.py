"""The interface of a suite: N environments that start, act or rest on request; restarts of failed ones."""

import logging
from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..utils.timestep import EnvSpec, TimeStep

_LOG = logging.getLogger(__name__)


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
    """N environments of one suite; the state of each follows from its last seed and the actions since."""

    spec: EnvSpec

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
        """Return a (height, width, 3) picture of environment 0; None if there is none.

        Raises:
            UserError: If it fails.
        """
        ...

    def close(self) -> None:
        """Release emulators and processes; may be called twice."""
        ...


class Restarts:
    """`EnvBackend.step_or_reset` that replaces environments that fail, up to `limit` times.

    `then` says in the warning what the owner does with the episode that was open.
    """

    def __init__(self, backend: EnvBackend, limit: int, then: str) -> None:
        self._backend = backend
        self._limit, self._then = limit, then
        self._count = 0
        self._crash: str | None = None  # about the first failure beyond the limit

    def step_or_reset(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> tuple[TimeStep, Failures]:
        """Start and act as `EnvBackend.step_or_reset`; retry a start that fails in the new environment.

        The failures are of environments that failed while they acted (their next call must be a start) and,
        once the restarts are used up, of those that could not start.
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
        """Raise `EnvironmentCrashed`, with all environments closed, once the restarts are used up."""
        if self._crash is not None:
            self._backend.close()
            raise EnvironmentCrashed(self._crash)

    def _replace(self, index: int, failure: EnvironmentFailed) -> None:
        """Replace an environment that failed, unless the restarts are used up."""
        name = self._backend.spec.name
        if self._count == self._limit:
            used_up = f" env.max_restarts={self._limit} is used up."
            self._crash = self._crash or failure.format_message(name, index, used_up)
            return
        self._count += 1
        renewed = f" It is replaced, restart {self._count} of env.max_restarts={self._limit};"
        _LOG.warning("%s", failure.format_message(name, index, f"{renewed} an open episode {self._then}."))
        self._backend.replace(index)
