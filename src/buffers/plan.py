"""Plan the memory of a replay buffer before anything is allocated."""

import math
from dataclasses import dataclass, replace

from ..utils.errors import UserError
from .chunked_queues import rows_needed
from .config import FieldSpec, ReplaySpec, record_fields
from .episode_index import EpisodeIndex

GIB = 2**30

_PARTS = {
    "action": "actions",
    "reward": "rewards",
    **dict.fromkeys(("is_first", "is_last", "is_terminal"), "flags"),
    **dict.fromkeys(("deter", "stoch"), "latents"),
}
"""Part of the arena that each field belongs to, the observations apart."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Fields and bytes of a buffer, equal to those that the buffer reports once it is made."""

    fields: dict[str, FieldSpec]
    num_rows: int
    """Records the arena has room for: the capacity, rounded up to chunks, and two chunks an environment."""

    part_bytes: dict[str, int]
    """By part: `observations`, `actions`, `rewards`, `flags` and `latents` are the arena, in the memory that
    `buffer.storage` names, and `index` is in host memory."""

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(self.part_bytes.values())

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena."""
        return self.nbytes - self.part_bytes["index"]


def plan_unchecked(spec: ReplaySpec) -> ReplayPlan:
    """Return the plan of a buffer of any size; allocates nothing."""
    fields = record_fields(spec)
    num_rows = rows_needed(spec.num_envs, spec.config.capacity, spec.config.chunk_length)
    part_bytes = dict.fromkeys(("observations", *_PARTS.values()), 0)
    for name, field in fields.items():
        part_bytes[_PARTS.get(name, "observations")] += num_rows * field.nbytes
    # with latents also one byte a row: whether they have changed since a save
    part_bytes["index"] = EpisodeIndex.required_bytes(spec) + num_rows * ("deter" in fields)
    return ReplayPlan(fields, num_rows, part_bytes)


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
        fits = largest_capacity(spec, budget)
        if fits >= smallest:
            repair = f"Lower buffer.capacity to {fits:,} or raise the budget."
        else:
            gib = math.ceil(plan.nbytes / GIB * 1000) / 1000
            repair = f"No capacity with a window of every environment fits: raise the budget to {gib:g}."
        raise UserError(
            f"{config.capacity:,} steps of {arrays} need {in_gib(plan.nbytes)} GiB, over "
            f"buffer.memory_budget_gib={config.memory_budget_gib:g}. {repair}"
        )
    return plan


def in_gib(num_bytes: int) -> str:
    """Return bytes as a number of GiB to read."""
    gib = num_bytes / GIB
    return f"{gib:,.1f}" if gib >= 0.1 else f"{gib:.2g}"
