"""Conversion between a buffer's inputs and outputs and the fields of its arena."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ..utils.timestep import TimeStep
from .batch import NO_POSITIONS, STEP_FIELDS, EpisodeRecords, SampledPositions, SequenceBatch, StoredLatent
from .compressed import RecordStore
from .fields import LATENT_FIELDS, OBSERVATION_PREFIX, FieldSpec, observation_keys, step_fields_of
from .storage import Arena

Forms = dict[str, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype per record of each field that is passed as an array."""


def record_forms(fields: Mapping[str, FieldSpec]) -> Forms:
    """Return the forms of a record, excluding latents."""
    given = step_fields_of(fields).items()
    return {name: (spec.shape, torch.empty(0, dtype=spec.dtype).numpy().dtype) for name, spec in given}


def step_fields(
    step: TimeStep, action: np.ndarray | Tensor, forms: Forms, count: int, owner: str = "a step"
) -> dict[str, Tensor]:
    """Return the fields of `count` records without latents. Actions become zeros where `is_last` is set.

    Tensors stay on their device.

    Raises:
        ValueError: If the shape or dtype of a field differs from `forms`.
    """
    given: dict[str, Any] = {OBSERVATION_PREFIX + key: each for key, each in step.observation.items()}
    given |= {
        "action": action,
        "reward": step.reward,
        "is_first": step.is_first,
        "is_last": step.is_last,
        "is_terminal": step.is_terminal,
    }
    found = {name: (values.shape, _numpy_dtype(values)) for name, values in given.items()}
    expected = {name: ((count, *shape), dtype) for name, (shape, dtype) in forms.items()}
    if found != expected:
        wrong = [n for n in sorted(found.keys() | expected.keys()) if found.get(n) != expected.get(n)]
        raise ValueError(
            "; ".join(f"{name} of {owner} is {found.get(name)}, not {expected.get(name)}" for name in wrong)
        )
    if not isinstance(action, Tensor):
        given["action"] = np.where(step.is_last[:, None], np.float32(0), action)
    elif step.is_last.any():
        is_last = torch.from_numpy(step.is_last).to(action.device)
        given["action"] = action.masked_fill(is_last[:, None], 0)
    return {name: _tensor(values) for name, values in given.items()}


def _numpy_dtype(values: np.ndarray | Tensor) -> np.dtype:
    return torch.empty(0, dtype=values.dtype).numpy().dtype if isinstance(values, Tensor) else values.dtype


def _tensor(values: np.ndarray | Tensor) -> Tensor:
    if isinstance(values, Tensor):
        return values
    # Read-only arrays are copied, because torch does not accept them.
    return torch.from_numpy(values if values.flags.carray else np.require(values, requirements=["C", "W"]))


def episode_fields(episode: EpisodeRecords, forms: Forms) -> dict[str, Tensor]:
    """Return the fields of all records of an episode.

    Raises:
        ValueError: If the episode is empty, or the shape or dtype of a field differs from `forms`.
    """
    length = len(episode.reward)
    if length == 0:
        raise ValueError("an episode must have at least 1 record")
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
    store: RecordStore,
    latents: Arena | None,
    rows: Int64[np.ndarray, "batch length"],
    positions: SampledPositions,
    out: SequenceBatch | None,
) -> SequenceBatch:
    """Return the windows in these rows of `store` without context, reusing the memory of `out` if given."""
    batch = _empty_batch(store, latents, *rows.shape) if out is None else out
    fields = {OBSERVATION_PREFIX + key: values for key, values in batch.observation.items()}
    store.read(store.to_index_tensor(rows), fields | {name: getattr(batch, name) for name in STEP_FIELDS})
    # An abandoned episode ends where the next episode begins.
    batch.is_last[:, :-1] |= batch.is_first[:, 1:]
    return replace(batch, positions=positions)


def _empty_batch(store: RecordStore, latents: Arena | None, batch_size: int, length: int) -> SequenceBatch:
    """Return a batch with uninitialized memory."""
    shape, keys = (batch_size, length), observation_keys(store.fields)
    context = latents and StoredLatent(*(latents.empty(name, (batch_size,)) for name in LATENT_FIELDS))
    return SequenceBatch(
        observation={key: store.empty(OBSERVATION_PREFIX + key, shape) for key in keys},
        **{name: store.empty(name, shape) for name in STEP_FIELDS},
        context=context,
        positions=NO_POSITIONS,
    )
