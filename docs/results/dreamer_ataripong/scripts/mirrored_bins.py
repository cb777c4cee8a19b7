"""Print, as JSON, how much the two-hot heads of Pong runs rely on mirrored bins that cancel.

python docs/results/dreamer_ataripong/scripts/mirrored_bins.py <run> ...

Each run's networks play 1,200 steps. The features come from 512 replayed states and 15 imagined steps from
each. For bins beyond 100, the output contains the sum of probability times value on the positive side (median
and maximum), and the distance between weights of mirrored bins as a share of their norm.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

from reverie.checkpoints.weights import load_weights
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.orchestration.recipes import recipe_of
from reverie.workflows.world_models.controller import imagine

SETTINGS = (
    "experiment=dreamer_ataripong",
    "device=cpu",
    "compile=none",
    "precision=float32",
    "buffer.capacity=20000",
)
STEPS, WINDOWS, FAR = 150, 32, 100.0


@torch.no_grad()
def found_in(run: str) -> dict[str, dict[str, float]]:
    """Return the measurements of the critic and the reward head."""
    config = typed(compose_jobs(SETTINGS)[0])
    parts = recipe_of(config).build(config, Path(tempfile.mkdtemp()))
    workflow, replay, environment = parts.workflow, parts.replay, parts.environment
    world_model, controller = workflow.world_model, workflow.controller
    load_weights(run, {"world_model": world_model.state_dict(), "controller": controller.state_dict()})
    arrival = environment.reset()
    for _ in range(STEPS):
        output = workflow.collect_step(arrival)
        replay.add(arrival, output.action, output.latent)
        arrival = environment.step(output.action)
    environment.close()
    noise = workflow.noise["update"]
    _, observed = world_model.observe(replay.sample(WINDOWS), noise)
    feature = imagine(world_model, controller.actor, observed.posterior.flatten(), 15, noise).feature.flatten(
        0, 1
    )
    result = {}
    for name, head in (("critic", controller.critic), ("reward", world_model.reward)):
        half, is_far = len(head.bins) - 1, head.bins > FAR
        mass = (head(feature).softmax(-1)[:, : half + 1][:, is_far] * head.bins[is_far]).sum(-1)
        weight, mirrored = head.out.weight[half:][is_far], head.out.weight[: half + 1].flip(0)[is_far]
        apart = (weight - mirrored).norm() / weight.norm()
        result[name] = {
            "one side, median": float(mass.median()),
            "one side, largest": float(mass.max()),
            "mirrored weights apart": float(apart),
        }
    return result


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps({Path(run).name: found_in(run) for run in sys.argv[1:]}, indent=1))


if __name__ == "__main__":
    main()
