"""Batches of windows: consecutive records, as `utils/timestep.py` defines them, of one environment's stream.

The model's step that consumes column t takes the action of column t - 1; where `is_first`, it ignores both
that action and its state. Column 0 gives only its stored latent and its action, columns 1 to T are trained.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, Shaped, UInt8
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StoredLatent:
    """Latent states as the buffer stores them, one per row, without graph."""

    deter: Float[Tensor, "batch deter"]
    """In `buffer.latent_dtype` out of the buffer, in any float dtype on the way in."""

    stoch: UInt8[Tensor, "batch latents"]
    """Class index of each categorical variable."""


@dataclass(frozen=True, slots=True)
class EpisodeRecords:
    """A whole finished episode in the arrival convention: n actions are n + 1 records."""

    observation: dict[str, Shaped[np.ndarray, "records ..."]]
    """Each key in the dtype of its spec; the last one is the final observation."""

    action: Float32[np.ndarray, "records action"]
    """Chosen after seeing each record; the last row was never executed and is stored as zeros."""

    reward: Float32[np.ndarray, "records"]
    """Received on arriving at each record, raw units; the first is 0."""

    is_terminal: bool
    """False: the last record was truncated."""


@dataclass(frozen=True, slots=True)
class SampledPositions:
    """Starts of the windows of a batch. Stream indices are never reused, so eviction does not change them."""

    env: Int64[np.ndarray, "batch"]
    start: Int64[np.ndarray, "batch"]
    """Stream index of column 0: how many records of that environment were added before it."""


NO_POSITIONS = SampledPositions(env=np.zeros(0, np.int64), start=np.zeros(0, np.int64))
"""Positions of a batch that was not sampled from a buffer."""

STEP_FIELDS = ("action", "reward", "is_first", "is_last", "is_terminal")


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """Windows of T + 1 columns, copied out of the buffer."""

    observation: dict[str, Shaped[Tensor, "batch length ..."]]
    """Each key in its stored dtype; images are bytes until the encoder converts them."""

    action: Float32[Tensor, "batch length action"]
    """Chosen after seeing the column; zeros where `is_last`."""

    reward: Float32[Tensor, "batch length"]
    """Received on arriving at the column, raw units; 0 where `is_first`."""

    is_first: Bool[Tensor, "batch length"]

    is_last: Bool[Tensor, "batch length"]
    """Final observation of an episode, or the last one known of an episode that was abandoned."""

    is_terminal: Bool[Tensor, "batch length"]
    """Terminated: no future to bootstrap from. Never set for an abandoned episode."""

    context: StoredLatent | None = None
    """Stored latent of column 0; None without stored latents."""

    positions: SampledPositions = NO_POSITIONS
    """Starts of the windows, for `EpisodeReplayBuffer.write_back`; stays on the host."""

    def to(self, device: torch.device | str) -> "SequenceBatch":
        """Return the same batch on `device`."""
        return self.map(lambda values: values.to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> "SequenceBatch":
        """Return the same batch with every tensor changed."""
        context = self.context and StoredLatent(change(self.context.deter), change(self.context.stoch))
        return replace(self, **self._changed(change), context=context)

    def select(self, rows: slice, columns: slice) -> "SequenceBatch":
        """Return a view of some windows and columns; `context` stays if column 0 does, else it is None."""
        first, _, _ = columns.indices(self.reward.shape[1])
        context, positions = self.context if first == 0 else None, self.positions
        return SequenceBatch(
            **self._changed(lambda values: values[rows, columns]),
            context=context and StoredLatent(deter=context.deter[rows], stoch=context.stoch[rows]),
            positions=SampledPositions(env=positions.env[rows], start=positions.start[rows] + first),
        )

    def trained(self) -> "SequenceBatch":
        """Return columns 1 to T, those that have losses, as a view."""
        return self.select(slice(None), slice(1, None))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return all fields that have columns, after `change`."""
        observation = {key: change(values) for key, values in self.observation.items()}
        return {"observation": observation} | {name: change(getattr(self, name)) for name in STEP_FIELDS}
