"""Surviving environments that raise, hang or die: a new one takes the place, up to a limit."""

import logging
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from .backend import EnvironmentFailed, Outcome, Simulators

_LOG = logging.getLogger(__name__)


class Restarts:
    """`Simulators.advance` that replaces environments that fail.

    Args:
        simulators: What may fail.
        limit: Restarts over the life of this object.
        then: What the owner does with the episode that was open, for the warning.
    """

    def __init__(self, simulators: Simulators, limit: int, then: str) -> None:
        self._simulators = simulators
        self._limit, self._then = limit, then
        self._count = 0
        self.crash: str | None = None
        """What failed beyond the limit, once something did; the environments are of no use from then on."""

    def advance(
        self, action: NDArray[np.float32], seeds: Mapping[int, int], idle: Collection[int] = ()
    ) -> Outcome:
        """Start and act as `Simulators.advance`; a start that fails is tried again in the new environment.

        Returns:
            Everyone's record. `failures` names those that failed while they acted (their next call must be a
            start) and, with `crash`, those that could not start.
        """
        outcome = self._simulators.advance(action, seeds, idle)
        unborn = outcome.failures
        while unborn:
            for index, failure in unborn.items():
                self._replace(index, failure)
            again = {index: seeds[index] for index in unborn if index in seeds}
            if not again or self.crash is not None:
                break
            others = [index for index in range(self._simulators.spec.num_envs) if index not in again]
            retried = self._simulators.advance(action, again, others)
            unborn = retried.failures
            _take(outcome, retried, [index for index in again if index not in unborn])
        return outcome

    def _replace(self, index: int, failure: EnvironmentFailed) -> None:
        """Put a new environment in the place of one that failed, or note the crash."""
        name = self._simulators.spec.name
        if self._count == self._limit:
            used_up = f" All {self._limit} restarts of env.max_restarts are used up."
            self.crash = self.crash or failure.told_of(name, index, used_up)
            return
        self._count += 1
        renewed = (
            f" It is replaced, restart {self._count} of env.max_restarts={self._limit}; an open episode "
            f"{self._then}."
        )
        _LOG.warning("%s", failure.told_of(name, index, renewed))
        self._simulators.replace(index)


def _take(outcome: Outcome, retried: Outcome, indices: list[int]) -> None:
    """Put the first records of `indices` into `outcome`."""
    for index in indices:
        del outcome.failures[index]
        for key, value in outcome.observation.items():
            value[index] = retried.observation[key][index]
