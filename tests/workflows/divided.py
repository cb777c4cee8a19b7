"""Results of processes that divide batches and environments between them.

Each rank computes `everything` from its part, and a single process computes it from the whole.
`test_ranks.py` compares them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.buffers import SequenceBatch
from reverie.utils.ranks import Ranks
from reverie.utils.timestep import TimeStep
from reverie.workflows.world_models import DreamerWorkflow, batch_of
from reverie.workflows.world_models.compiled import tensors_of
from reverie.workflows.world_models.config import BarlowConfig, DecoderUse, Objective

from ..golden.reference import CASES, load
from ..models.tiny import CPU
from .test_nonfinite import NAN, PHASES, differing
from .test_nonfinite import everything as saved
from .tiny import make_batch, parameters, random_observation, tiny_workflow

Found = dict[str, Tensor]
UPDATES, WINDOWS, ENVS = 5, 16, 4
OBJECTIVES: dict[str, dict[str, Any]] = {
    "reconstruction": {},
    "barlow": {"objective": Objective.barlow},
    "infonce": {"objective": Objective.infonce, "barlow": BarlowConfig(dims=4)},
    "harmony": {"harmony": True},
    "detached decoder": {"objective": Objective.none, "decoder": DecoderUse.detached},
}
LEARNED = (*CASES, *OBJECTIVES, "warm-up")


def everything(ranks: Ranks) -> dict[str, Found]:
    """Return the results of this rank for its part, by case."""
    found = {case: of_golden_case(case, ranks) for case in CASES}
    found |= {name: of_objective(settings, ranks) for name, settings in OBJECTIVES.items()}
    found |= {"warm-up": of_warm_up(ranks), "acting": of_acting(ranks), "returns": of_returns(ranks)}
    found |= {f"bad {phase}": of_bad_batch(phase, ranks) for phase in PHASES}
    return found | {"one moment": of_one_moment(ranks)}


def of_golden_case(case: str, ranks: Ranks) -> Found:
    """Learn from the recorded windows: three twice, plus the first two, because 4 divides neither 3 nor 6.

    The noise is sampled, unlike in the recorded run, so that a repeated window has two samples.
    """
    golden, rows = load(case, ranks), [0, 1, 2, 3, 4, 5, 0, 1]
    windows = [tensors_of(golden.batch(index)) for index in (0, 1)]
    together = {name: torch.cat([each[name] for each in windows])[rows] for name in windows[0]}
    batches = [{name: x.roll(count, 0) for name, x in together.items()} for count in range(UPDATES)]
    return learn(golden.workflow, [batch_of(each) for each in batches])


def of_objective(settings: dict[str, Any], ranks: Ranks) -> Found:
    """Learn from random windows with an objective."""
    torch.manual_seed(0)
    workflow = tiny_workflow(world_model=settings, ranks=ranks)
    return learn(workflow, [make_batch(workflow, WINDOWS) for _ in range(UPDATES)])


def of_warm_up(ranks: Ranks) -> Found:
    """Train only the world model, from weights that differ per rank and are replaced by rank 0's."""
    torch.manual_seed(ranks.index)
    workflow = tiny_workflow(is_discrete=False, is_perturbed=False, ranks=ranks)
    torch.manual_seed(9)
    return learn(workflow, [make_batch(workflow, WINDOWS) for _ in range(UPDATES)], "update_world_model")


def learn(workflow: DreamerWorkflow, batches: Sequence[SequenceBatch], phase: str = "update") -> Found:
    """Learn from this rank's part of each batch. Return metrics, first gradients and learned values."""
    found: Found = {}

    def keep_gradients(*_: Any) -> None:
        trained = {name: p.grad for name, p in parameters(workflow).items() if p.grad is not None}
        found.update({f"gradient/{name}": gradient.clone() for name, gradient in trained.items()})

    handle = workflow.optimizers["world_model"].register_step_pre_hook(keep_gradients)
    for index, batch in enumerate(batches):
        updated = getattr(workflow, phase)(part(batch, workflow.ranks))
        handle.remove()
        found |= {f"metric/{index}/{name}": value for name, value in updated.metrics.items()}
        found |= {f"finite/{index}": updated.finite, f"norms/{index}": updated.gradient_norms}
    found["is_equal"] = torch.tensor(workflow.is_equal_on_ranks())
    return found | {f"after{name}": value for name, value in saved(workflow).items()}


def part(batch: SequenceBatch, ranks: Ranks) -> SequenceBatch:
    """Return this rank's windows."""
    return batch.select(ranks.slice_of(len(batch.reward)), slice(None))


def of_acting(ranks: Ranks) -> Found:
    """Act for three steps in this rank's environments."""
    torch.manual_seed(0)
    form, own = tiny_workflow(), ranks.slice_of(ENVS)
    torch.manual_seed(0)
    workflow = DreamerWorkflow(replace(form.env, num_envs=ranks.part(ENVS)), form.config, CPU, ranks=ranks)
    rows: list[Tensor] = []
    for step in range(3):
        seen = random_observation(form.env.observation, ENVS)
        no, yes = np.zeros(ENVS, np.bool_)[own], np.full(ENVS, step == 0)[own]
        arrival = TimeStep(
            {key: x[own].numpy() for key, x in seen.items()}, no.astype(np.float32), yes, no, no
        )
        output = workflow.collect_step(arrival)
        rows.append(torch.cat([torch.from_numpy(output.action), output.latent.deter], 1))
    return {"actions and states": torch.stack(rows, 1)}


def of_returns(ranks: Ranks) -> Found:
    """Return the inputs of the normalizer in one update, and its resulting moving averages."""
    torch.manual_seed(0)
    workflow = tiny_workflow(ranks=ranks)
    seen: list[Tensor] = []
    normalizer = workflow.controller.normalizer
    update = normalizer.update
    normalizer.update = lambda returns: update(seen.append(returns) or returns)
    workflow.update(part(make_batch(workflow, WINDOWS), ranks))
    return {"returns": seen[0], "averages": torch.stack([normalizer.low, normalizer.high])}


def of_bad_batch(phase: str, ranks: Ranks) -> Found:
    """Make an update with one non-finite reward on the last rank. Return whether it had any effect."""
    torch.manual_seed(0)
    workflow = tiny_workflow(ranks=ranks)
    workflow.update(part(make_batch(workflow, WINDOWS), ranks))
    before, batch = saved(workflow), make_batch(workflow, WINDOWS)
    batch.reward[WINDOWS - 1, 3] = NAN
    updated = getattr(workflow, phase)(part(batch, ranks))
    changed = differing(workflow, before)
    return {"finite": updated.finite, "only the noise moved": torch.tensor(changed == {"/noise/update"})}


def of_one_moment(ranks: Ranks) -> Found:
    """Return whether ranks count as equal before and after one entry of a moment changes on the last rank."""
    workflow = tiny_workflow(ranks=ranks)
    before = workflow.is_equal_on_ranks()
    workflow.optimizers["critic"].momentum[-1].view(-1)[-1] += 1e-9 * (ranks.index == ranks.size - 1)
    return {"before": torch.tensor(before), "after": torch.tensor(workflow.is_equal_on_ranks())}
