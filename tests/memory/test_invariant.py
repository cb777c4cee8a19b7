from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from heapwatch.objects.graph_holders import first_graph
from heapwatch.objects.walk import walk
from torch import nn

from reverie.utils.metrics import MetricMeans
from reverie.workflows.world_models import DreamerWorkflow

from ..workflows.tiny import IMAGE, make_arrival, make_batch, tiny_workflow


def trained() -> dict[str, Any]:
    workflow, means = tiny_workflow(IMAGE), MetricMeans()
    for _ in range(2):
        workflow.collect_step(make_arrival(workflow))
        means.add(workflow.update(make_batch(workflow)).metrics)
    return {
        "workflow": workflow,
        "means": means,
        "loop": SimpleNamespace(losses=[], net=workflow.world_model),
    }


def test_a_workflow_that_acts_and_learns_keeps_no_graph() -> None:
    roots = trained()
    assert first_graph(roots) is None
    roots["workflow"].report(make_batch(roots["workflow"]))
    assert first_graph(roots) is None


def keep_state(workflow: DreamerWorkflow, roots: dict[str, Any]) -> None:
    rssm, batch = workflow.world_model.rssm, make_batch(workflow)
    tokens = workflow.world_model.encoder({k: v[:2, :1] for k, v in batch.observation.items()})
    noise = rssm.noise(workflow.noise["collect"], 2, 1)
    rssm.observe(tokens, batch.action[:2, :1], batch.is_first[:2, :1], noise)


def keep_mean(workflow: DreamerWorkflow, roots: dict[str, Any]) -> None:
    totals = roots["means"]._totals
    for key, (total, count) in totals.items():
        totals[key] = (0.99 * total + workflow.world_model.rssm.core.mix_bias.sum(), count)


def keep_hook(workflow: DreamerWorkflow, roots: dict[str, Any]) -> None:
    loss = workflow.world_model.rssm.core.mix_bias.sum()
    workflow.world_model.rssm.core.register_forward_hook(lambda *_: loss.detach() and None)


def keep_gradient(workflow: DreamerWorkflow, roots: dict[str, Any]) -> None:
    bias = workflow.world_model.rssm.core.mix_bias
    bias.grad = None
    bias.square().sum().backward(create_graph=True)


def keep_loss(workflow: DreamerWorkflow, roots: dict[str, Any]) -> None:
    roots["loop"].losses += [0.0, workflow.world_model.rssm.core.mix_bias.sum()]


def keep_many_losses(workflow: DreamerWorkflow, roots: dict[str, Any]) -> None:
    roots["loop"].losses += [0.0] * 200_000 + [workflow.world_model.rssm.core.mix_bias.sum()]


@pytest.mark.filterwarnings(r"ignore:Using backward\(\) with create_graph=True")
@pytest.mark.parametrize(
    ("fault", "path"),
    [
        (keep_state, "workflow.world_model.rssm._state.deter"),
        (keep_mean, "means._totals["),
        (keep_hook, "workflow.world_model.rssm.core._forward_hooks["),
        (keep_gradient, "workflow.world_model.rssm.core.mix_bias.grad"),
        (keep_loss, "loop.losses[1]"),
        (keep_many_losses, "loop.losses[200000]"),
    ],
)
def test_a_graph_that_outlives_its_update_is_named(
    fault: Callable[[DreamerWorkflow, dict[str, Any]], None], path: str
) -> None:
    roots = trained()
    assert first_graph(roots) is None
    fault(roots["workflow"], roots)
    found = first_graph(roots)
    assert found is not None and found.startswith(path)


def test_it_stops_at_the_first_graph_and_at_its_limit() -> None:
    weight = nn.Parameter(torch.ones(3))
    assert first_graph({"a": [weight.exp()], "b": [weight.exp()]}) == "a[0]"
    store = [[i, []] for i in range(100)] + [[weight.exp()]]
    assert first_graph({"store": store}) == "store[100][0]"
    assert first_graph({"store": store}, max_objects=50) is None


def test_a_workflow_is_small_to_walk() -> None:
    roots = trained()
    # The cost of the check is proportional to this number, at 4 us per object (493 objects at size12m).
    assert walk(roots).objects < 800
