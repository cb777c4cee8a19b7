"""Results of processes that share one GPU, for their parts of the batches in `divided.py`."""

from collections.abc import Sequence

import torch

from reverie.buffers import SequenceBatch
from reverie.utils.ranks import Ranks
from reverie.workflows.world_models import DreamerWorkflow

from . import divided
from .divided import Found

CARD = torch.device("cuda")
as_written = divided.learn


def everything(ranks: Ranks) -> dict[str, Found]:
    """Return the learned values of this rank, by case."""
    divided.learn = learn
    found = {case: divided.of_golden_case(case, ranks) for case in divided.CASES}
    return found | {name: divided.of_objective(each, ranks) for name, each in divided.OBJECTIVES.items()}


def learn(workflow: DreamerWorkflow, batches: Sequence[SequenceBatch], phase: str = "update") -> Found:
    """Learn on the GPU, starting from a workflow's networks on the CPU."""
    twin = DreamerWorkflow(workflow.env, workflow.config, CARD, ranks=workflow.ranks)
    twin.world_model.load_state_dict(workflow.world_model.state_dict())
    twin.controller.load_state_dict(workflow.controller.state_dict())
    found = as_written(twin, [batch.to(CARD) for batch in batches], phase)
    return {name: value.cpu() for name, value in found.items()}
