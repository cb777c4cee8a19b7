"""Measure the variants of a row in turn, and collect the results."""

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
    """Measure variants in turn, close them, and return a result for each.

    Args:
        bench: The run of the suite.
        row: Name of the row.
        variants: Variants to measure. All others are compared with the first one.
        floor: Lower bound for all variants, or a function that derives the bound from the measurements.
        derived: Amounts per call, which are reported per second.
        notes: How the work differs from that of the first variant, by variant name.
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
