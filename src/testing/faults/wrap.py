"""Where faults take hold of a run: around its updates, its losses, its steps."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...buffers import SequenceBatch
from ...orchestration.world_model_orchestrator import WorldModelOrchestrator
from ...utils.timestep import Arrival
from ...workflows.base import Updated


def attach(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    """Give an object one more attribute, and return a function that reads it.

    The function knows the owner weakly: the fault's own code must not be a second path to what it keeps.
    """
    setattr(owner, name, value)
    known = weakref.proxy(owner)
    return lambda: getattr(known, name)


def after_update(run: WorldModelOrchestrator, act: Callable[[Updated], None]) -> None:
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


def after_environment_step(run: WorldModelOrchestrator, act: Callable[[Arrival], None]) -> None:
    """Call `act` with what each step of the environments brings."""
    after_call(run.parts.environment, "step", act)


def after_call(owner: Any, method: str, act: Callable[[Any], None]) -> None:
    """Call `act` with what each call of a method returns."""
    original = getattr(owner, method)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        act(result)
        return result

    setattr(owner, method, wrapped)
