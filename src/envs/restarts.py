"""Replace environments that raise, hang or die, up to a limit."""

import logging
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from ..utils.timestep import TimeStep
from .backend import EnvBackend, EnvironmentFailed, Failures

_LOG = logging.getLogger(__name__)


class Restarts:
    """`EnvBackend.step_or_reset` that replaces environments that fail.

    Args:
        backend: The environments.
        limit: Restarts over the life of this object.
        then: What the owner does with the episode that was open, for the warning.
    """

    def __init__(self, backend: EnvBackend, limit: int, then: str) -> None:
        self._backend = backend
        self._limit, self._then = limit, then
        self._count = 0
        self.crash: str | None = None
        """The message about the first failure beyond the limit; the environments are useless from then on."""

    def step_or_reset(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> tuple[TimeStep, Failures]:
        """Start and act as `EnvBackend.step_or_reset`; retry a start that fails in the new environment.

        Returns:
            The records, and the failures: environments that failed while they acted (their next call must be
            a start) and, with `crash`, those that could not start.
        """
        step, failures = self._backend.step_or_reset(action, seeds, idle)
        failed = failures
        while failed:
            for index, failure in failed.items():
                self._replace(index, failure)
            failed_resets = {index: seeds[index] for index in failed if index in seeds}
            if not failed_resets or self.crash is not None:
                break
            others = [index for index in range(self._backend.spec.num_envs) if index not in failed_resets]
            retried, failed = self._backend.step_or_reset(action, failed_resets, others)
            for index in failed_resets.keys() - failed.keys():
                del failures[index]
                step.set_observation(index, {key: each[index] for key, each in retried.observation.items()})
        return step, failures

    def _replace(self, index: int, failure: EnvironmentFailed) -> None:
        """Replace an environment that failed, or set `crash` if the restarts are used up."""
        name = self._backend.spec.name
        if self._count == self._limit:
            used_up = f" All {self._limit} restarts of env.max_restarts are used up."
            self.crash = self.crash or failure.format_message(name, index, used_up)
            return
        self._count += 1
        renewed = (
            f" It is replaced, restart {self._count} of env.max_restarts={self._limit}; an open episode "
            f"{self._then}."
        )
        _LOG.warning("%s", failure.format_message(name, index, renewed))
        self._backend.replace(index)
