"""Convert between what a buffer takes and gives, and the fields of its arena."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ..utils.timestep import TimeStep
from .batch import NO_POSITIONS, STEP_FIELDS, EpisodeRecords, SampledPositions, SequenceBatch, StoredLatent
from .config import LATENT_FIELDS, OBSERVATION_PREFIX, FieldSpec, observation_keys
from .storage import Arena

Forms = dict[str, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of one record's share of each field that is given as an array."""


def record_forms(fields: Mapping[str, FieldSpec]) -> Forms:
    """Return the forms of a record, latents apart."""
    given = {name: spec for name, spec in fields.items() if name not in LATENT_FIELDS}
    return {
        name: (spec.shape, torch.empty(0, dtype=spec.dtype).numpy().dtype) for name, spec in given.items()
    }


def step_fields(
    step: TimeStep, action: np.ndarray, forms: Forms, count: int, owner: str = "a step"
) -> dict[str, Tensor]:
    """Return the fields of `count` records, latents apart; actions after the last observation become zeros.

    Raises:
        ValueError: If one has another shape or dtype than in `forms`.
    """
    given = {OBSERVATION_PREFIX + key: values for key, values in step.observation.items()}
    given |= {
        "action": action,
        "reward": step.reward,
        "is_first": step.is_first,
        "is_last": step.is_last,
        "is_terminal": step.is_terminal,
    }
    found = {name: (values.shape, values.dtype) for name, values in given.items()}
    expected = {name: ((count, *shape), dtype) for name, (shape, dtype) in forms.items()}
    if found != expected:
        wrong = [n for n in sorted(found.keys() | expected.keys()) if found.get(n) != expected.get(n)]
        raise ValueError(
            "; ".join(f"{name} of {owner} is {found.get(name)}, not {expected.get(name)}" for name in wrong)
        )
    given["action"] = np.where(given["is_last"][:, None], np.float32(0), given["action"])
    return {
        # torch refuses read-only arrays, so those are copied
        name: torch.from_numpy(values if values.flags.carray else np.require(values, requirements=["C", "W"]))
        for name, values in given.items()
    }


def episode_fields(episode: EpisodeRecords, forms: Forms) -> dict[str, Tensor]:
    """Return the fields of all records of an episode.

    Raises:
        ValueError: If there is no record, or a field has another shape or dtype than in `forms`.
    """
    length = len(episode.reward)
    if length == 0:
        raise ValueError("an episode has at least 1 record")
    is_last = np.arange(length) == length - 1
    rows = TimeStep(
        observation=episode.observation,
        reward=episode.reward,
        is_first=np.arange(length) == 0,
        is_last=is_last,
        is_terminal=is_last & bool(episode.is_terminal),
    )
    return step_fields(rows, episode.action, forms, length, "an episode")


def read_windows(
    arena: Arena, rows: Int64[Tensor, "batch length"], positions: SampledPositions, out: SequenceBatch | None
) -> SequenceBatch:
    """Return the windows in these rows, in the memory of `out` if it is given."""
    batch = replace(_empty_batch(arena, *rows.shape) if out is None else out, positions=positions)
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
    shape, keys = (batch_size, length), observation_keys(arena.fields)
    latents = None
    if "deter" in arena.fields:
        latents = StoredLatent(*(arena.empty(name, (batch_size,)) for name in LATENT_FIELDS))
    return SequenceBatch(
        observation={key: arena.empty(OBSERVATION_PREFIX + key, shape) for key in keys},
        **{name: arena.empty(name, shape) for name in STEP_FIELDS},
        context=latents,
        positions=NO_POSITIONS,
    )
