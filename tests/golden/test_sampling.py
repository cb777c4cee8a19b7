"""With sampled latents and actions, losses and gradients are distributed as in the author's code.

`sampled.json` was recorded by `benchmarks/peers/dreamerv3_sampled.py`.
"""

import json
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from reverie.models import Noise

from .reference import FOLDER, Golden, all_parameters, load, name_map

SEEDS = 200
LOSSES = {
    "dynamics": "dyn",
    "representation": "rep",
    "reward": "rew",
    "continue": "con",
    "policy": "policy",
    "value": "value",
    "replay_value": "repval",
}
METRICS = {
    "policy_entropy": "ent/action",
    "advantage_std": "adv_std",
    "imagined_reward_mean": "rew",
    "value_mean": "val",
}


def samples(golden: Golden) -> Iterator[dict[str, float]]:
    """Yield the losses, metrics and squared gradient norms of the first batch, with the reference's names."""
    workflow, batch = golden.workflow, golden.batch(0)
    noise = Noise(torch.Generator().manual_seed(0))
    parameters, normalizer = all_parameters(workflow), workflow.controller.normalizer
    names = [row[:2] for row in name_map(golden.case) if parameters[row[0]].requires_grad]
    key = next(iter(batch.observation))
    before = [average.clone() for average in (normalizer.low, normalizer.high)]
    for _ in range(SEEDS):
        normalizer.low.copy_(before[0])
        normalizer.high.copy_(before[1])
        losses, metrics, _ = workflow.losses(batch, noise)
        workflow.total(losses).backward()
        found = {f"loss/{theirs}": losses[ours].mean() for ours, theirs in LOSSES.items()}
        found[f"loss/{key}"] = losses[f"decoder/{key}"].mean()
        found |= {theirs: metrics[ours] for ours, theirs in METRICS.items()}
        for ours, theirs in names:
            gradient = parameters[ours].grad
            assert gradient is not None
            found[f"grad/{theirs}"] = gradient.square().sum()
            parameters[ours].grad = None
        yield {name: float(value.detach()) for name, value in found.items()}


@pytest.mark.parametrize("case", ["vector", "pixels"])
def test_means_and_spreads_over_seeds_equal_the_reference(case: str) -> None:
    recorded = json.loads((FOLDER / "sampled.json").read_text())
    columns: defaultdict[str, list[float]] = defaultdict(list)
    for sample in samples(load(case)):
        for name, value in sample.items():
            columns[name].append(value)
    assert columns.keys() == recorded[case].keys()
    for name, values in columns.items():
        mean, spread = recorded[case][name]
        error = np.hypot(np.std(values) / SEEDS**0.5, spread / recorded["seeds"] ** 0.5)
        assert abs(np.mean(values) - mean) < 5 * error + 1e-4 * abs(mean), name
        if name.startswith(("loss/", "ent/")):
            assert np.std(values) == pytest.approx(spread, rel=0.3), name
