"""Transitions: pairs of consecutive records inside one episode, numbered from the oldest on.

The transition of rank r is the r-th over all streams, one stream after the other, oldest first. The caller
draws ranks uniformly in [0, num_transitions): whoever holds the same records gives the same batch for the
same ranks, be it the buffer or a copy of it in another process.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64, Shaped
from torch import Tensor

from .plan import OBSERVATION_PREFIX, ReplayPlan, observation_keys

_OTHER_FIELDS = ("action", "reward", "is_terminal")
"""What a transition takes of its records beside the observations."""


@dataclass(frozen=True, slots=True)
class TransitionBatch:
    """Transitions in memory of their own, no view of where they came from."""

    observation: dict[str, Shaped[Tensor, "batch ..."]]
    """Each key in its stored dtype."""

    action: Float32[Tensor, "batch action"]
    """Chosen after seeing `observation`."""

    reward: Float32[Tensor, "batch"]
    """Received on arriving at `next_observation`, raw units."""

    next_observation: dict[str, Shaped[Tensor, "batch ..."]]

    is_terminal: Bool[Tensor, "batch"]
    """Whether `next_observation` has no future to bootstrap from; False where the episode was truncated."""

    def to(self, device: torch.device | str) -> "TransitionBatch":
        """Return the same batch on `device`."""
        return TransitionBatch(
            observation={key: values.to(device) for key, values in self.observation.items()},
            action=self.action.to(device),
            reward=self.reward.to(device),
            next_observation={key: values.to(device) for key, values in self.next_observation.items()},
            is_terminal=self.is_terminal.to(device),
        )


class Transitions(Protocol):
    """What transitions are taken from: a buffer, or a table of one."""

    @property
    def num_transitions(self) -> int:
        """Transitions that there are."""
        ...

    def transitions(
        self, ranks: Int64[np.ndarray, "batch"], out: TransitionBatch | None = None
    ) -> TransitionBatch:
        """Return the transitions of these ranks, in this order; `out` is written over if given."""
        ...


@dataclass(frozen=True, slots=True)
class TransitionTable:
    """A copy of all records of a buffer as plain arrays, to be sent to where transitions are trained on.

    Its transitions equal those of the buffer at the time of the copy, bit for bit. Read-only arrays do.
    """

    fields: dict[str, Shaped[np.ndarray, "records ..."]]
    """Observations, actions, rewards and `is_terminal`, by their names in the arena, in stream order."""

    starts: Int64[np.ndarray, "transitions"]
    """Row of the first record of every transition; the second one is in the row after it."""

    @staticmethod
    def nbytes_of(plan: ReplayPlan, capacity: int) -> int:
        """Return the bytes that a table of a buffer of `capacity` records never passes."""
        record = sum(plan.fields[name].nbytes for name in transition_fields(plan.fields))
        return capacity * (record + np.dtype(np.int64).itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(values.nbytes for values in self.fields.values()) + self.starts.nbytes

    @property
    def num_transitions(self) -> int:
        """Transitions in the table."""
        return len(self.starts)

    def transitions(
        self, ranks: Int64[np.ndarray, "batch"], out: TransitionBatch | None = None
    ) -> TransitionBatch:
        """Return the transitions of these ranks as a copy in host memory; see `Transitions`.

        Raises:
            ValueError: If a rank is out of range, or `out` is of another size.
        """
        check_ranks(ranks, self.num_transitions, out)
        first = torch.from_numpy(self.starts[ranks])
        return read_transitions(self._gather, self.fields, first, first + 1, out)

    def _gather(self, name: str, rows: Int64[Tensor, "batch"], out: Tensor | None) -> Tensor:
        """Copy the given rows of a field; torch's own gather would warn of arrays that are read-only."""
        field, indices = self.fields[name], rows.numpy()
        if out is None:
            return torch.from_numpy(np.take(field, indices, axis=0))
        np.take(field, indices, axis=0, out=out.numpy(), mode="clip")  # `raise` would copy twice
        return out


def transition_fields(names: Iterable[str]) -> list[str]:
    """Return those names of fields in the arena that transitions are made of."""
    return [name for name in names if name.startswith(OBSERVATION_PREFIX) or name in _OTHER_FIELDS]


def check_ranks(ranks: Int64[np.ndarray, "batch"], count: int, out: TransitionBatch | None) -> None:
    """Check that ranks lie in [0, count) and that `out` has a row for each.

    Raises:
        ValueError: Naming the first rank that is out of range, or both sizes.
    """
    wrong = (ranks < 0) | (ranks >= count)
    if wrong.any():
        raise ValueError(f"rank {ranks[wrong][0]} is not in [0, {count}), the range of the transitions held")
    if out is not None and len(out.reward) != len(ranks):
        raise ValueError(f"out holds {len(out.reward)} transitions, ranks has {len(ranks)}")


def read_transitions(
    gather: Callable[[str, Tensor, Tensor | None], Tensor],
    names: Iterable[str],
    first: Int64[Tensor, "batch"],
    second: Int64[Tensor, "batch"],
    out: TransitionBatch | None,
) -> TransitionBatch:
    """Return the transitions between two sets of rows.

    Args:
        gather: Copies rows of a field into the tensor given, or into new memory for None.
        names: Of the fields that there are.
        first: Rows of the records that are left.
        second: Rows of the records that are arrived at.
        out: Where to; None takes new memory.
    """
    keys = observation_keys(names)
    return TransitionBatch(
        observation={
            key: gather(OBSERVATION_PREFIX + key, first, out and out.observation[key]) for key in keys
        },
        action=gather("action", first, out and out.action),
        reward=gather("reward", second, out and out.reward),
        next_observation={
            key: gather(OBSERVATION_PREFIX + key, second, out and out.next_observation[key]) for key in keys
        },
        is_terminal=gather("is_terminal", second, out and out.is_terminal),
    )
