"""Faults of a population: the losses that the trainer of the incident report kept for its log."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...orchestration.population.orchestrator import PopulationOrchestrator
from ...workflows.population import Members, Piece
from .wrap import after_call, attach


def loss_tensors_kept(run: PopulationOrchestrator) -> None:
    """Keep every loss, undetached, after its backward pass: the fault of the incident."""
    kept = attach(run.parts.workflow, "losses_kept", [])
    after_call(run.parts.workflow.td3, "total", lambda total: kept().append(total))


def loss_tensors_kept_without_backward(run: PopulationOrchestrator) -> None:
    """Compute each critic's loss once more for the log and keep it: no backward pass frees its graph."""
    kept = attach(run.parts.workflow, "losses_kept", [])
    td3: Any = run.parts.workflow.td3
    update = td3.update

    def logs(members: Members, parts: Sequence[Piece]) -> dict[str, Tensor]:
        leaves = {name: each.detach().requires_grad_() for name, each in members.networks["critic"].items()}
        kept().append(td3.critic_loss(members, leaves, parts[0]).sum())
        return update(members, parts)

    td3.update = logs
