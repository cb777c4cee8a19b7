"""Plan the memory of a replay buffer before anything is allocated."""

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
"""Of the number of a raw chunk."""

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
    `buffer.storage` names, and `index` is in host memory. Compressed, `observations` are all codes, and
    the newest chunk of every stream as it is."""

    guaranteed: int
    """Records that are held whatever they are: the capacity, or fewer if nothing compresses."""

    num_pages: int = 0
    """Pages of the arena of codes."""

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
    config, fields = spec.config, record_fields(spec)
    num_rows = rows_needed(spec.num_envs, config.capacity, config.chunk_length)
    part_bytes = dict.fromkeys(("observations", *_PARTS.values()), 0)
    latent_rows = num_rows // spec.start_every
    for name, field in fields.items():
        rows = latent_rows if name in LATENT_FIELDS else num_rows
        part_bytes[_PARTS.get(name, "observations")] += rows * field.nbytes
    # with latents also one byte a row: whether they have changed since a save
    part_bytes["index"] = EpisodeIndex.required_bytes(spec) + latent_rows * ("deter" in fields)
    if not config.compressed:
        return ReplayPlan(fields, num_rows, part_bytes, config.capacity)
    chunk = config.chunk_length * RecordLayout(step_fields_of(fields)).num_words * WORD
    num_chunks, of_chunk = num_rows // config.chunk_length, pages_needed(chunk)
    # A window in every environment, which may begin and end inside a chunk, and room for the next chunks.
    fewest = spec.num_envs * (spec.window_length // config.chunk_length + 3)
    part_bytes["index"] += num_chunks * (BYTES_PER_STRING + SLOT_BYTES) + spec.num_envs * SLOT_BYTES
    fixed = spec.num_envs * chunk + part_bytes["latents"] + part_bytes["index"]
    left = max(0, int(config.memory_budget_gib * GIB) - fixed) // BYTES_PER_PAGE
    num_pages = min(max(left, fewest * of_chunk), num_chunks * of_chunk)
    part_bytes |= {"actions": 0, "rewards": 0, "flags": 0}
    part_bytes["observations"] = num_pages * PAGE_BYTES + spec.num_envs * chunk
    part_bytes["index"] += num_pages * (BYTES_PER_PAGE - PAGE_BYTES)
    # The oldest chunk of each stream may be held for its last record, and the next one needs room.
    held = (num_pages // of_chunk - 2 * spec.num_envs) * config.chunk_length
    return ReplayPlan(fields, num_rows, part_bytes, min(config.capacity, held), num_pages)


def largest_capacity(spec: ReplaySpec, max_bytes: int) -> int:
    """Return the largest capacity that needs no more than `max_bytes`, 0 if there is none.

    A compressed replay needs its index and latents, and the codes of a window in every environment.
    """
    chunk = spec.config.chunk_length

    def needed(num_chunks: int) -> int:
        config = replace(spec.config, capacity=num_chunks * chunk, memory_budget_gib=1e-9)
        return plan_unchecked(replace(spec, config=config)).nbytes

    return bisect_right(range(1, max_bytes // chunk + 1), max_bytes, key=needed) * chunk


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
            f"needs windows of {count_text(spec.window_length, 'step')} from each environment, {smallest} "
            "in all, "
            f"over buffer.capacity={config.capacity}. Raise buffer.capacity to {smallest}{or_shorter}."
        )
    if (spec.window_length - 1) % spec.start_every:
        chunk = config.chunk_length
        nearest = largest_divisor(spec.start_every, spec.window_length - 1, chunk)
        raise UserError(
            f"buffer.latent_every={spec.start_every} does not divide training.sequence_length="
            f"{spec.window_length - 1}, so steps would be replayed unequally often. Set buffer.latent_every="
            f"{nearest}, the largest below it that divides this and buffer.chunk_length={chunk}."
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
            f"{count_text(config.capacity, 'step')} of {arrays} need {in_gib(plan.nbytes)} GiB, over "
            f"buffer.memory_budget_gib={config.memory_budget_gib:g}. {repair}"
        )
    return plan


def in_gib(num_bytes: int) -> str:
    """Return bytes as a number of GiB to read."""
    gib = num_bytes / GIB
    return f"{gib:,.1f}" if gib >= 0.1 else f"{gib:.2g}"
