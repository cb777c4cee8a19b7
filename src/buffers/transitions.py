"""Transitions: pairs of consecutive records in one episode.

Transitions are numbered stream by stream, oldest first, so a copy in another process returns the same
batches.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64, Shaped
from torch import Tensor
from torch.utils._pytree import tree_map

from ..utils.units import count_text
from .fields import OBSERVATION_PREFIX, observation_keys
from .plan import ReplayPlan

_OTHER_FIELDS = ("action", "reward", "is_terminal")


@dataclass(frozen=True, slots=True)
class TransitionBatch:
    """A batch of copied transitions, with observations in their stored dtypes."""

    observation: dict[str, Shaped[Tensor, "batch ..."]]

    action: Float32[Tensor, "batch action"]
    """Actions chosen after seeing `observation`."""

    reward: Float32[Tensor, "batch"]
    """Rewards received on arriving at `next_observation`, in raw units."""

    next_observation: dict[str, Shaped[Tensor, "batch ..."]]
    is_terminal: Bool[Tensor, "batch"]
    """Whether the episode terminated at `next_observation`, or False if it was truncated."""

    def to(self, device: torch.device | str) -> "TransitionBatch":
        """Return the batch on `device`."""
        parts = [getattr(self, item.name) for item in fields(self)]
        return TransitionBatch(*tree_map(lambda tensor: tensor.to(device), parts))


@dataclass(frozen=True, slots=True)
class TransitionTable:
    """A copy of all records of a buffer as plain arrays, for processes that train on transitions.

    Its transitions are bit-for-bit identical to the buffer's. The arrays may be read-only.
    """

    fields: dict[str, Shaped[np.ndarray, "records ..."]]
    """Records in stream order, by field name as in the arena. See `transition_fields`."""

    starts: Int64[np.ndarray, "transitions"]
    """Row of each transition's first record. The second record is in the next row."""

    @staticmethod
    def nbytes_of(plan: ReplayPlan, capacity: int) -> int:
        """Return the maximum size in bytes of a table for a buffer of `capacity` records."""
        record = sum(plan.fields[name].nbytes for name in transition_fields(plan.fields))
        return capacity * (record + np.dtype(np.int64).itemsize)

    @property
    def num_transitions(self) -> int:
        """Number of transitions in the table."""
        return len(self.starts)

    def transitions(
        self, indices: Int64[np.ndarray, "batch"], out: TransitionBatch | None = None
    ) -> TransitionBatch:
        """Return the transitions at these indices, in order, in host memory. `out` is reused if given.

        Raises:
            ValueError: If an index is out of range, or `out` has a different size.
        """
        check_indices(indices, self.num_transitions, out)
        first = torch.from_numpy(self.starts[indices])
        return read_transitions(self._gather, self.fields, first, first + 1, out)

    def _gather(self, name: str, rows: Int64[Tensor, "batch"], out: Tensor | None) -> Tensor:
        """Copy these rows of a field with numpy, because torch warns about read-only arrays."""
        field, numbers = self.fields[name], rows.numpy()
        if out is None:
            return torch.from_numpy(np.take(field, numbers, axis=0))
        # With mode="raise", the rows would be copied twice.
        np.take(field, numbers, axis=0, out=out.numpy(), mode="clip")
        return out


def transition_fields(names: Iterable[str]) -> list[str]:
    """Return the names of the arena's fields that transitions use."""
    return [name for name in names if name.startswith(OBSERVATION_PREFIX) or name in _OTHER_FIELDS]


def check_indices(indices: Int64[np.ndarray, "batch"], count: int, out: TransitionBatch | None) -> None:
    """Check that indices are in [0, count) and that `out` has one row per index.

    Raises:
        ValueError: If an index is out of range (the message gives the first one), or the sizes differ.
    """
    wrong = (indices < 0) | (indices >= count)
    if wrong.any():
        raise ValueError(f"index {indices[wrong][0]} is not in [0, {count}), the range of transition indices")
    if out is not None and len(out.reward) != len(indices):
        raise ValueError(f"out has {count_text(len(out.reward), 'transition')} for {len(indices)} indices")


def read_transitions(
    gather: Callable[[str, Tensor, Tensor | None], Tensor],
    names: Iterable[str],
    first: Int64[Tensor, "batch"],
    second: Int64[Tensor, "batch"],
    out: TransitionBatch | None,
) -> TransitionBatch:
    """Return the transitions from the records in rows `first` to the records in rows `second`.

    `gather` copies rows of a field into the given tensor, or into a new tensor if it is `None`.
    """
    keys = {key: OBSERVATION_PREFIX + key for key in observation_keys(names)}
    return TransitionBatch(
        observation={key: gather(keys[key], first, out and out.observation[key]) for key in keys},
        action=gather("action", first, out and out.action),
        reward=gather("reward", second, out and out.reward),
        next_observation={key: gather(keys[key], second, out and out.next_observation[key]) for key in keys},
        is_terminal=gather("is_terminal", second, out and out.is_terminal),
    )
