"""Variants of one row, measured in turn and brought into results."""

from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks.suite.bench import Bench
from benchmarks.suite.results import Floor, Result, timed_result
from benchmarks.suite.timing import Block, Variant, interleave

OURS = "reverie"
Blocks = dict[str, list[Block]]


def compare(
    bench: Bench,
    row: str,
    variants: Sequence[Variant],
    floor: Floor | Callable[[Blocks], Floor],
    derived: dict[str, float],
    notes: Mapping[str, str] | None = None,
) -> list[Result]:
    """Measure variants in turn, close them, and return a result of each.

    Args:
        bench: The run of the suite.
        row: Name of the row.
        variants: The first is the one that the others are compared with.
        floor: The limit of all of them, or how it follows from what was measured.
        derived: Amounts per call, which are told per second.
        notes: What differs from the work of the first, by the name of the variant.
    """
    try:
        blocks = interleave(variants, bench.settings.repetitions, bench.settings.block_seconds)
    finally:
        for variant in variants:
            variant.close()
    first = variants[0].name
    limit = floor if isinstance(floor, Floor) else floor(blocks)
    return [
        timed_result(
            row,
            variant.name,
            blocks[variant.name],
            threads=torch.get_num_threads(),
            floor=limit,
            base=None if variant.name == first else blocks[first],
            derived=derived,
            facts=variant.facts,
            note=(notes or {}).get(variant.name, ""),
        )
        for variant in variants
    ]
