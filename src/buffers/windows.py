"""Copy windows out of the arena."""

from dataclasses import replace

from jaxtyping import Int64
from torch import Tensor

from .batch import NO_POSITIONS, STEP_FIELDS, SampledPositions, SequenceBatch, StoredLatent
from .plan import OBSERVATION_PREFIX, observation_keys
from .storage import Arena


def read_windows(
    arena: Arena, rows: Int64[Tensor, "batch length"], positions: SampledPositions, out: SequenceBatch | None
) -> SequenceBatch:
    """Return the windows in these rows, in the memory of `out` if it is given."""
    batch_size, length = rows.shape
    batch = _empty_batch(arena, batch_size, length) if out is None else out
    batch = replace(batch, positions=positions)
    for key, values in batch.observation.items():
        arena.gather(OBSERVATION_PREFIX + key, rows, values)
    for name in STEP_FIELDS:
        arena.gather(name, rows, getattr(batch, name))
    batch.is_last[:, :-1] |= batch.is_first[:, 1:]  # an abandoned episode ends where the next one begins
    if batch.context is not None:
        arena.gather("deter", rows[:, 0], batch.context.deter)
        arena.gather("stoch", rows[:, 0], batch.context.stoch)
    return batch


def _empty_batch(arena: Arena, batch_size: int, length: int) -> SequenceBatch:
    """Return uninitialised memory for a batch."""
    empty, shape, one = arena.empty, (batch_size, length), (batch_size,)
    latents = None
    if "deter" in arena.names:
        latents = StoredLatent(deter=empty("deter", one), stoch=empty("stoch", one))
    return SequenceBatch(
        observation={key: empty(OBSERVATION_PREFIX + key, shape) for key in observation_keys(arena.names)},
        action=empty("action", shape),
        reward=empty("reward", shape),
        is_first=empty("is_first", shape),
        is_last=empty("is_last", shape),
        is_terminal=empty("is_terminal", shape),
        context=latents,
        positions=NO_POSITIONS,
    )
