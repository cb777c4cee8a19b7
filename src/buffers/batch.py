"""Batches of windows. A window consists of consecutive records (see `utils/timestep.py`) from one stream.

The model step for column t uses the action of column t - 1. Where `is_first` is set, it ignores this action
and the previous state. Column 0 only provides its stored latent and its action. The model is trained on
columns 1 to T.
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
    """Deterministic state: any float dtype when added to the buffer, `buffer.latent_dtype` when read."""

    stoch: UInt8[Tensor, "batch latents"]
    """Class index of each categorical variable."""


@dataclass(frozen=True, slots=True)
class EpisodeRecords:
    """A complete episode in the arrival convention: n actions produce n + 1 records."""

    observation: dict[str, Shaped[np.ndarray, "records ..."]]
    """Observations by key, in the dtypes of their specs. The last row is the final observation."""

    action: Float32[np.ndarray, "records action"]
    """Actions chosen after seeing each record. The last one is never executed and is stored as zeros."""

    reward: Float32[np.ndarray, "records"]
    """Rewards received on arriving at each record, in raw units. The first is 0."""

    is_terminal: bool
    """Whether the episode terminated, or False if it was truncated."""


@dataclass(frozen=True, slots=True)
class SampledPositions:
    """Start positions of a batch's windows. They stay valid because stream indices are never reused."""

    env: Int64[np.ndarray, "batch"]
    start: Int64[np.ndarray, "batch"]
    """Stream index of column 0: the number of records added earlier for that environment."""


NO_POSITIONS = SampledPositions(env=np.zeros(0, np.int64), start=np.zeros(0, np.int64))
"""Placeholder for batches that were not sampled from a buffer."""

STEP_FIELDS = ("action", "reward", "is_first", "is_last", "is_terminal")


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """Windows of T + 1 columns, copied from the buffer."""

    observation: dict[str, Shaped[Tensor, "batch length ..."]]
    """Observations by key, in their stored dtypes. Images stay uint8 until the encoder converts them."""

    action: Float32[Tensor, "batch length action"]
    """Actions chosen after seeing each column, or zeros where `is_last` is set."""

    reward: Float32[Tensor, "batch length"]
    """Rewards received on arriving at each column, in raw units. They are 0 where `is_first` is set."""

    is_first: Bool[Tensor, "batch length"]

    is_last: Bool[Tensor, "batch length"]
    """Whether the column is the final observation of an episode, or the last record of an abandoned one."""

    is_terminal: Bool[Tensor, "batch length"]
    """Whether the episode terminated, so that its return must not be bootstrapped. False if abandoned."""

    context: StoredLatent | None = None
    """Stored latent of column 0, or `None` if latents are not stored."""

    positions: SampledPositions = NO_POSITIONS
    """Start positions of the windows (in host memory), for `EpisodeReplayBuffer.write_back`."""

    def to(self, device: torch.device | str) -> "SequenceBatch":
        """Return the batch on `device`."""
        return self.map(lambda values: values.to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> "SequenceBatch":
        """Return the batch with `change` applied to every tensor."""
        context = self.context and StoredLatent(change(self.context.deter), change(self.context.stoch))
        return replace(self, **self._changed(change), context=context)

    def select(self, rows: slice, columns: slice) -> "SequenceBatch":
        """Return a view of these windows and columns. `context` is `None` unless column 0 is included."""
        first, _, _ = columns.indices(self.reward.shape[1])
        context, positions = self.context if first == 0 else None, self.positions
        return SequenceBatch(
            **self._changed(lambda values: values[rows, columns]),
            context=context and StoredLatent(deter=context.deter[rows], stoch=context.stoch[rows]),
            positions=SampledPositions(env=positions.env[rows], start=positions.start[rows] + first),
        )

    def trained(self) -> "SequenceBatch":
        """Return a view of columns 1 to T, on which the losses are computed."""
        return self.select(slice(None), slice(1, None))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Apply `change` to all fields that have a column axis and return the results by name."""
        observation = {key: change(values) for key, values in self.observation.items()}
        return {"observation": observation} | {name: change(getattr(self, name)) for name in STEP_FIELDS}
