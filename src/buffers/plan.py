"""Planning of a replay buffer's memory before it is allocated."""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace

from ..utils.errors import UserError
from ..utils.units import count_text
from .chunked_queues import rows_needed
from .codec import WORD, RecordLayout
from .config import largest_divisor
from .episode_index import EpisodeIndex
from .fields import LATENT_FIELDS, FieldSpec, ReplaySpec, record_fields, step_fields_of
from .pages import BYTES_PER_PAGE, BYTES_PER_STRING, PAGE_BYTES, pages_needed

GIB = 2**30
SLOT_BYTES = 4
"""Bytes per entry of the table that locates raw chunks."""

_PARTS = {
    "action": "actions",
    "reward": "rewards",
    **dict.fromkeys(("is_first", "is_last", "is_terminal"), "flags"),
    **dict.fromkeys(("deter", "stoch"), "latents"),
}
"""Part of the arena to which each field except the observations belongs."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Fields and memory of a buffer. The buffer reports the same values after construction."""

    fields: dict[str, FieldSpec]
    num_rows: int
    """Rows of the arena: the capacity, rounded up to chunks, plus two chunks per environment."""

    part_bytes: dict[str, int]
    """Bytes by part: `observations`, `actions`, `rewards`, `flags` and `latents` (in `buffer.storage`), and
    `index` (in host memory). In compressed buffers, `observations` includes all encoded and raw chunks."""

    guaranteed: int
    """Number of records that always fit: the capacity, or fewer in compressed buffers."""

    num_pages: int = 0
    """Number of pages for encoded chunks."""

    @property
    def nbytes(self) -> int:
        """Total bytes."""
        return sum(self.part_bytes.values())

    @property
    def arena_bytes(self) -> int:
        """Size of the arena in bytes."""
        return self.nbytes - self.part_bytes["index"]


def plan_unchecked(spec: ReplaySpec) -> ReplayPlan:
    """Return the plan of a buffer of any size, without checking settings or allocating memory."""
    config, fields = spec.config, record_fields(spec)
    num_rows = rows_needed(spec.num_envs, config.capacity, config.chunk_length)
    part_bytes = dict.fromkeys(("observations", *_PARTS.values()), 0)
    latent_rows = num_rows // spec.start_every
    for name, field in fields.items():
        rows = latent_rows if name in LATENT_FIELDS else num_rows
        part_bytes[_PARTS.get(name, "observations")] += rows * field.nbytes
    # Each row of latents has a one-byte flag that marks changes since the last save.
    part_bytes["index"] = EpisodeIndex.required_bytes(spec) + latent_rows * ("deter" in fields)
    if not config.compressed:
        return ReplayPlan(fields, num_rows, part_bytes, config.capacity)
    chunk = config.chunk_length * RecordLayout(step_fields_of(fields)).num_words * WORD
    num_chunks, of_chunk = num_rows // config.chunk_length, pages_needed(chunk)
    # At least new chunks and one window per environment must fit. Windows may start and end inside chunks.
    fewest = spec.num_envs * (spec.window_length // config.chunk_length + 3)
    part_bytes["index"] += num_chunks * (BYTES_PER_STRING + SLOT_BYTES) + spec.num_envs * SLOT_BYTES
    fixed = spec.num_envs * chunk + part_bytes["latents"] + part_bytes["index"]
    left = max(0, int(config.memory_budget_gib * GIB) - fixed) // BYTES_PER_PAGE
    num_pages = min(max(left, fewest * of_chunk), num_chunks * of_chunk)
    part_bytes |= {"actions": 0, "rewards": 0, "flags": 0}
    part_bytes["observations"] = num_pages * PAGE_BYTES + spec.num_envs * chunk
    part_bytes["index"] += num_pages * (BYTES_PER_PAGE - PAGE_BYTES)
    # The oldest chunk of each stream may contain only one record, and the next chunk needs room.
    held = (num_pages // of_chunk - 2 * spec.num_envs) * config.chunk_length
    return ReplayPlan(fields, num_rows, part_bytes, min(config.capacity, held), num_pages)


def largest_capacity(spec: ReplaySpec, max_bytes: int) -> int:
    """Return the largest capacity that fits in `max_bytes`, or 0 if not even the smallest fits.

    For a compressed buffer, only the index, the latents and one encoded window per environment must fit.
    """
    chunk = spec.config.chunk_length

    def needed(num_chunks: int) -> int:
        config = replace(spec.config, capacity=num_chunks * chunk, memory_budget_gib=1e-9)
        return plan_unchecked(replace(spec, config=config)).nbytes

    return bisect_right(range(1, max_bytes // chunk + 1), max_bytes, key=needed) * chunk


def plan_replay(spec: ReplaySpec) -> ReplayPlan:
    """Check the settings of a buffer and return its plan, without allocating memory.

    Raises:
        UserError: If the capacity is less than one window per environment, or exceeds the memory budget.
    """
    config = spec.config
    smallest = spec.num_envs * spec.window_length
    if config.capacity < smallest:
        longest = config.capacity // spec.num_envs - 1
        or_shorter = f" or lower training.sequence_length to {longest}" if longest >= 1 else ""
        raise UserError(
            f"training.sequence_length={spec.window_length - 1} with env.num_envs={spec.num_envs} "
            f"needs a window of {count_text(spec.window_length, 'step')} per environment, {smallest} "
            "in total, "
            f"but buffer.capacity={config.capacity}. Raise buffer.capacity to {smallest}{or_shorter}."
        )
    if (spec.window_length - 1) % spec.start_every:
        chunk = config.chunk_length
        nearest = largest_divisor(spec.start_every, spec.window_length - 1, chunk)
        raise UserError(
            f"buffer.latent_every={spec.start_every} does not divide training.sequence_length="
            f"{spec.window_length - 1}, so some steps would be replayed more often. Set buffer.latent_every="
            f"{nearest}, the largest smaller divisor of this and of buffer.chunk_length={chunk}."
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
            repair = f"Not even one window per environment fits. Raise the budget to {gib:g}."
        raise UserError(
            f"{count_text(config.capacity, 'step')} of {arrays} need {in_gib(plan.nbytes)} GiB, over "
            f"buffer.memory_budget_gib={config.memory_budget_gib:g}. {repair}"
        )
    return plan


def in_gib(num_bytes: int) -> str:
    """Format a number of bytes as readable GiB."""
    gib = num_bytes / GIB
    return f"{gib:,.1f}" if gib >= 0.1 else f"{gib:.2g}"
