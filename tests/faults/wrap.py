"""Where faults take hold of a run: around its updates, its losses, its steps."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from reverie.buffers import SequenceBatch
from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator
from reverie.testing.faults import after_call
from reverie.utils.timestep import TimeStep
from reverie.workflows.base import UpdateOutput


def after_update(run: WorldModelOrchestrator, act: Callable[[UpdateOutput], None]) -> None:
    """Call `act` with what each update leaves behind."""
    after_call(run.parts.workflow, "update", act)
    after_call(run.parts.workflow, "update_world_model", act)


def after_total(run: WorldModelOrchestrator, act: Callable[[Tensor], None]) -> None:
    """Call `act` with the total loss of each update, before its backward pass."""
    after_call(run.parts.workflow, "total", act)


def after_sample(run: WorldModelOrchestrator, act: Callable[[SequenceBatch], None]) -> None:
    """Call `act` with each batch that is drawn from the replay, in memory of its own.

    Reverie's loop has every batch written over the one before, which no keeper of batches can make grow.
    """
    draw = run.parts.replay.sample

    def draw_anew(*args: Any, out: SequenceBatch | None = None, **kwargs: Any) -> SequenceBatch:
        return draw(*args, **kwargs)

    setattr(run.parts.replay, "sample", draw_anew)  # noqa: B010
    after_call(run.parts.replay, "sample", act)


def after_environment_step(run: WorldModelOrchestrator, act: Callable[[TimeStep], None]) -> None:
    """Call `act` with what each step of the environments brings."""
    after_call(run.parts.environment, "step", act)
