"""Hooks through which faults enter a run: its updates, its losses and its steps."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from reverie.buffers import SequenceBatch
from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator
from reverie.testing.faults import after_call
from reverie.utils.timestep import TimeStep
from reverie.workflows.base import UpdateOutput


def after_update(run: WorldModelOrchestrator, act: Callable[[UpdateOutput], None]) -> None:
    """Call `act` with the result of each update."""
    after_call(run.parts.workflow, "update", act)
    after_call(run.parts.workflow, "update_world_model", act)


def after_total(run: WorldModelOrchestrator, act: Callable[[Tensor], None]) -> None:
    """Call `act` with the total loss of each update, before its backward pass."""
    after_call(run.parts.workflow, "total", act)


def after_sample(run: WorldModelOrchestrator, act: Callable[[SequenceBatch], None]) -> None:
    """Call `act` with a copy of each batch sampled from the replay.

    Reverie's loop overwrites the previous batch, so keeping batches would otherwise not use more memory.
    """
    draw = run.parts.replay.sample

    def draw_anew(*args: Any, out: SequenceBatch | None = None, **kwargs: Any) -> SequenceBatch:
        return draw(*args, **kwargs)

    setattr(run.parts.replay, "sample", draw_anew)  # noqa: B010
    after_call(run.parts.replay, "sample", act)


def after_environment_step(run: WorldModelOrchestrator, act: Callable[[TimeStep], None]) -> None:
    """Call `act` with the result of each environment step."""
    after_call(run.parts.environment, "step", act)
