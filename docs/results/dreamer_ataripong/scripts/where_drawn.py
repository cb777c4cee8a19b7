"""Measure the share of balls that a Pong run's decoder draws, by position and by direction.

python docs/results/dreamer_ataripong/scripts/where_drawn.py <run>

`<run>` has a checkpoint with its replay, from which windows are sampled uniformly. A ball is any difference
between a frame and the median frame of its batch, in the area between the paddles. It counts as drawn if less
than half of its squared difference is missing.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from reverie.checkpoints.checkpoint import latest_checkpoint
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.orchestration.recipes import recipe_of

COMMON = ("experiment=dreamer_ataripong", "device=cpu", "compile=none", "precision=float32")
SETTINGS = (*COMMON, "world_model.objective=reconstruction", "buffer.newest_share=0")
BATCHES, WINDOWS, CELL = 14, 16, 8
# This is the area between the paddles.
ROWS, COLUMNS = slice(11, 59), slice(9, 55)
LEAST = 0.05


@torch.no_grad()
def main() -> None:
    config = typed(compose_jobs(SETTINGS)[0])
    parts = recipe_of(config).build(config, Path(tempfile.mkdtemp()))
    workflow, replay = parts.workflow, parts.replay
    parts.environment.close()
    checkpoint = latest_checkpoint(Path(sys.argv[1]))
    checkpoint.restore_replay(replay)
    checkpoint.restore_workflow(workflow)
    cells, drawn_cells, ways, drawn_ways = Counter(), Counter(), Counter(), Counter()
    columns = torch.arange(64.0)[COLUMNS]
    rows = torch.arange(64.0)[ROWS]
    for _ in range(BATCHES):
        batch = replay.sample(WINDOWS)
        _, observed = workflow.world_model.observe(batch, workflow.noise["update"])
        painted = workflow.world_model.decoder(observed.posterior)["image"][:, :, ROWS, COLUMNS]
        truth = batch.trained().observation["image"][:, :, ROWS, COLUMNS].float() / 255
        difference = truth - truth.flatten(0, 1).median(0).values
        is_ball = difference.abs().amax(-1) > 0.15
        mass = difference.square().sum(-1) * is_ball
        missing = ((painted - truth).square().sum(-1) * is_ball).sum((2, 3))
        total = mass.sum((2, 3))
        x = (mass.sum(2) * columns).sum(-1) / total
        y = (mass.sum(3) * rows).sum(-1) / total
        for b, t in (total > LEAST).nonzero().tolist():
            drawn = bool(missing[b, t] < total[b, t] / 2)
            cell = int(y[b, t]) // CELL, int(x[b, t]) // CELL
            cells[cell] += 1
            drawn_cells[cell] += drawn
            if t and total[b, t - 1] > LEAST:
                way = "right" if x[b, t] > x[b, t - 1] else "left"
                ways[way] += 1
                drawn_ways[way] += drawn
    for way, count in ways.items():
        print(f"{way}: {drawn_ways[way] / count:.2f} of {count}")
    for row in range(1, 8):
        shares = [(drawn_cells[row, column], cells[row, column]) for column in range(1, 7)]
        print(
            " ".join(f"{drawn / count:.2f} of {count:3d}" if count else 11 * "-" for drawn, count in shares)
        )


if __name__ == "__main__":
    main()
