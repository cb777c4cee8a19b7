"""Batches of windows. A window has consecutive records (see `utils/timestep.py`) of one environment's stream.

The model step for column t uses the action of column t - 1. Where `is_first`, it ignores this action and its
state. Column 0 provides only its stored latent and its action. Columns 1 to T are trained.
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
    """Detached latent states in the buffer's format, one per row."""

    deter: Float[Tensor, "batch deter"]
    """Any float dtype when added to the buffer, and `buffer.latent_dtype` when read."""

    stoch: UInt8[Tensor, "batch latents"]
    """Class index of each categorical variable."""


@dataclass(frozen=True, slots=True)
class EpisodeRecords:
    """A complete episode in the arrival convention: n actions make n + 1 records."""

    observation: dict[str, Shaped[np.ndarray, "records ..."]]
    """Each key in the dtype of its spec. The last row is the final observation."""

    action: Float32[np.ndarray, "records action"]
    """Chosen after seeing each record. The last row is never executed. It is stored as zeros."""

    reward: Float32[np.ndarray, "records"]
    """Received on arriving at each record, raw units. The first is 0."""

    is_terminal: bool
    """Whether the episode terminated, or False if it was truncated."""


@dataclass(frozen=True, slots=True)
class SampledPositions:
    """Starts of a batch's windows. Stream indices are never reused, so they stay valid after evictions."""

    env: Int64[np.ndarray, "batch"]
    start: Int64[np.ndarray, "batch"]
    """Stream index of column 0: the number of records added earlier for that environment."""


NO_POSITIONS = SampledPositions(env=np.zeros(0, np.int64), start=np.zeros(0, np.int64))
"""Positions of batches that were not sampled from a buffer."""

STEP_FIELDS = ("action", "reward", "is_first", "is_last", "is_terminal")


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """Windows of T + 1 columns, copied from the buffer."""

    observation: dict[str, Shaped[Tensor, "batch length ..."]]
    """Each key in its stored dtype. Images stay uint8 until the encoder converts them."""

    action: Float32[Tensor, "batch length action"]
    """Chosen after seeing the column, or zeros where `is_last`."""

    reward: Float32[Tensor, "batch length"]
    """Received on arriving at the column, raw units. It is 0 where `is_first`."""

    is_first: Bool[Tensor, "batch length"]

    is_last: Bool[Tensor, "batch length"]
    """Final observation of an episode, or the last record of an abandoned episode."""

    is_terminal: Bool[Tensor, "batch length"]
    """Terminated, so the return must not be bootstrapped. Never set for abandoned episodes."""

    context: StoredLatent | None = None
    """Stored latent of column 0, or None if latents are not stored."""

    positions: SampledPositions = NO_POSITIONS
    """Starts of the windows on the host, for `EpisodeReplayBuffer.write_back`."""

    def to(self, device: torch.device | str) -> "SequenceBatch":
        """Return the batch on `device`."""
        return self.map(lambda values: values.to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> "SequenceBatch":
        """Return the batch with `change` applied to every tensor."""
        context = self.context and StoredLatent(change(self.context.deter), change(self.context.stoch))
        return replace(self, **self._changed(change), context=context)

    def select(self, rows: slice, columns: slice) -> "SequenceBatch":
        """Return a view of some windows and columns. `context` is None unless column 0 is included."""
        first, _, _ = columns.indices(self.reward.shape[1])
        context, positions = self.context if first == 0 else None, self.positions
        return SequenceBatch(
            **self._changed(lambda values: values[rows, columns]),
            context=context and StoredLatent(deter=context.deter[rows], stoch=context.stoch[rows]),
            positions=SampledPositions(env=positions.env[rows], start=positions.start[rows] + first),
        )

    def trained(self) -> "SequenceBatch":
        """Return a view of columns 1 to T, for which losses are computed."""
        return self.select(slice(None), slice(1, None))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return all fields with a column axis, after applying `change`."""
        observation = {key: change(values) for key, values in self.observation.items()}
        return {"observation": observation} | {name: change(getattr(self, name)) for name in STEP_FIELDS}
