"""Plan the memory of a replay buffer before anything is allocated."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..utils.errors import UserError
from ..utils.timestep import ActionSpec, ArraySpec
from .batch import LatentSpec
from .chunked_queues import rows_needed
from .config import ReplayConfig
from .episode_index import EpisodeIndex

OBSERVATION_PREFIX = "observation."
"""Of the names of observations among the fields of a record, in memory and on disk."""

GIB = 2**30

LATENT_FIELDS = ("deter", "stoch")

_PARTS = {
    "actions": ("action",),
    "rewards": ("reward",),
    "flags": ("is_first", "is_last", "is_terminal"),
    "latents": LATENT_FIELDS,
}
"""Names of the fields that belong together, without the observations."""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Shape and dtype of a field, of one record unless said otherwise."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the field."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"

    def of(self, count: int) -> "FieldSpec":
        """Return the same field of `count` records."""
        return FieldSpec((count, *self.shape), self.dtype)


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """Everything that determines the size of a replay buffer."""

    config: ReplayConfig
    observation: dict[str, ArraySpec]
    action: ActionSpec
    num_envs: int
    window_length: int
    """Records in a window: training.sequence_length + 1."""

    latent: LatentSpec | None
    """None, or `buffer.store_latents=false`, stores no latents."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Fields and bytes of a buffer, equal to those that the buffer reports once it is made."""

    fields: dict[str, FieldSpec]
    num_rows: int
    """Records the arena has room for: the capacity, rounded up to chunks, and two chunks an environment."""

    arena_bytes: int
    """Bytes of the arena, in the memory that `buffer.storage` names."""

    obs_bytes: int
    """Bytes of the arena that belong to observations."""

    nbytes: int
    """All bytes: the arena, and the index in host memory."""

    def part_bytes(self) -> dict[str, int]:
        """Return the bytes of the arena, by part: observations, actions, rewards, flags, latents."""
        parts = {"observations": self.obs_bytes}
        for part, names in _PARTS.items():
            record = sum(self.fields[name].nbytes for name in names if name in self.fields)
            parts[part] = self.num_rows * record
        return parts


def record_fields(spec: ReplaySpec) -> dict[str, FieldSpec]:
    """Return the fields of a record, observations in their own dtype."""
    fields = {
        OBSERVATION_PREFIX + key: FieldSpec(array.shape, _torch_dtype(key, array.dtype))
        for key, array in spec.observation.items()
    }
    fields["action"] = FieldSpec((spec.action.size,), torch.float32)
    fields["reward"] = FieldSpec((), torch.float32)
    for flag in ("is_first", "is_last", "is_terminal"):
        fields[flag] = FieldSpec((), torch.bool)
    if spec.latent is not None and spec.config.store_latents:
        fields["deter"] = FieldSpec((spec.latent.deter_size,), spec.config.latent_dtype.torch_dtype)
        fields["stoch"] = FieldSpec((spec.latent.num_latents,), torch.uint8)
    return fields


def plan_unchecked(spec: ReplaySpec) -> ReplayPlan:
    """Return the plan of a buffer of any size; allocates nothing."""
    config = spec.config
    fields = record_fields(spec)
    pool = spec.num_envs, config.capacity, config.chunk_length
    num_rows = rows_needed(*pool)
    index_bytes = EpisodeIndex.required_bytes(*pool, config.cross_episodes)
    index_bytes += num_rows * ("deter" in fields)  # whether the latents of a row have changed since a save
    arena_bytes = num_rows * sum(field.nbytes for field in fields.values())
    obs = sum(field.nbytes for name, field in fields.items() if name.startswith(OBSERVATION_PREFIX))
    return ReplayPlan(
        fields=fields,
        num_rows=num_rows,
        arena_bytes=arena_bytes,
        obs_bytes=num_rows * obs,
        nbytes=arena_bytes + index_bytes,
    )


def largest_capacity(spec: ReplaySpec, max_bytes: int) -> int:
    """Return the largest capacity that needs no more than `max_bytes`, 0 if there is none.

    Bytes are linear in the number of whole chunks of capacity, so two points suffice.
    """
    chunk = spec.config.chunk_length

    def needed(num_chunks: int) -> int:
        return plan_unchecked(replace(spec, config=replace(spec.config, capacity=num_chunks * chunk))).nbytes

    one = needed(1)
    return max(0, 1 + (max_bytes - one) // (needed(2) - one)) * chunk


def plan_replay(spec: ReplaySpec) -> ReplayPlan:
    """Return the plan of a buffer after checking that it is possible; allocates nothing.

    Raises:
        UserError: If the capacity cannot hold a window of every environment, or the buffer would own more
            than `buffer.memory_budget_gib`.
    """
    config = spec.config
    smallest = spec.num_envs * spec.window_length
    if config.capacity < smallest:
        longest = config.capacity // spec.num_envs - 1
        or_shorter = f" or lower training.sequence_length to {longest}" if longest >= 1 else ""
        raise UserError(
            f"training.sequence_length={spec.window_length - 1} with env.num_envs={spec.num_envs} "
            f"needs windows of {spec.window_length} steps from each environment, {smallest} steps in all, "
            f"over buffer.capacity={config.capacity}. Raise buffer.capacity to {smallest}{or_shorter}."
        )
    plan = plan_unchecked(spec)
    budget = int(config.memory_budget_gib * GIB)
    if plan.nbytes > budget:
        arrays = " + ".join(f"{array.shape} {array.dtype}" for array in spec.observation.values())
        raise UserError(
            f"{config.capacity:,} steps of {arrays} need {in_gib(plan.nbytes)} GiB, over "
            f"buffer.memory_budget_gib={config.memory_budget_gib:g}. {_repair(spec, plan, budget)}"
        )
    return plan


def observation_keys(names: Iterable[str]) -> list[str]:
    """Return the keys of the observations among the names of fields."""
    return [name.removeprefix(OBSERVATION_PREFIX) for name in names if name.startswith(OBSERVATION_PREFIX)]


def in_gib(num_bytes: int) -> str:
    """Return bytes as a number of GiB to read."""
    gib = num_bytes / GIB
    return f"{gib:,.1f}" if gib >= 0.1 else f"{gib:.2g}"


def _torch_dtype(key: str, dtype: np.dtype) -> torch.dtype:
    """Return the torch dtype of an observation, or refuse one that torch cannot copy by index."""
    try:
        found = torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        found = None
    if found in (None, torch.uint16, torch.uint32, torch.uint64):
        raise UserError(
            f"Observation `{key}` of the environment has dtype {dtype}, which replay cannot store: "
            f"wrap the environment to give uint8, a signed integer or a float."
        )
    return found


def _repair(spec: ReplaySpec, plan: ReplayPlan, budget: int) -> str:
    """Return the sentence that says what would fit into `budget` bytes."""
    fits = largest_capacity(spec, budget)
    if fits >= spec.num_envs * spec.window_length:
        return f"Lower buffer.capacity to {fits:,} or raise the budget."
    gib = math.ceil(plan.nbytes / GIB * 1000) / 1000
    return f"No capacity with a window of every environment fits: raise the budget to {gib:g}."
