"""Every fault by its name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...config.schema import WorkflowName
from ...utils.errors import UserError, did_you_mean
from . import containers, graphs, population, resources


@dataclass(frozen=True, slots=True)
class Fault:
    """A leak that can be switched on."""

    inject: Callable[[Any], object]
    """Changes a run, the orchestrator of its workflow, that has not begun."""

    culprit: str
    """What the diagnosis has to name: a part of the path, or a word for what has no path."""

    verdict: str = "leak"
    """The right verdict."""

    workflow: WorkflowName = WorkflowName.dreamer
    """What has to run for it."""

    @property
    def description(self) -> str:
        """What is done wrong, in one sentence."""
        return (self.inject.__doc__ or "").partition("\n")[0]


_STATE = "workflow.world_model.rssm._state"

FAULTS: dict[str, Fault] = {
    fault.inject.__name__: fault
    for fault in (
        Fault(graphs.rssm_cache_not_detached, _STATE),
        Fault(graphs.rssm_returns_detached_cache_not, _STATE),
        Fault(graphs.rssm_half_detached, f"{_STATE}.deter"),
        Fault(graphs.rssm_kept_sometimes, "workflow.kept_states"),
        Fault(graphs.losses_after_backward, "workflow.losses_kept"),
        Fault(graphs.losses_with_retained_graph, "workflow.losses_kept"),
        Fault(graphs.moving_average_of_losses, "workflow.average_loss"),
        Fault(graphs.gradient_of_gradient, "create_graph"),
        Fault(graphs.global_trace, "GLOBAL_TRACE"),
        Fault(containers.observations_kept, "loop.arrivals"),
        Fault(containers.views_of_batches, "loop.first_frames"),
        Fault(containers.hook_each_update, "workflow.world_model.encoder._forward_hooks"),
        Fault(containers.cycles, "garbage collector", "collectable"),
        Fault(containers.exceptions_kept, "workflow.errors"),
        Fault(containers.results_by_step, "workflow.by_update"),
        Fault(containers.optimizers_replaced, "workflow.old_optimizers"),
        Fault(containers.callbacks_kept, "loop.callbacks"),
        Fault(containers.queue_not_drained, "loop.reports.pictures"),
        Fault(containers.deque_without_limit, "workflow.recent"),
        Fault(containers.metrics_history, "loop.history"),
        Fault(resources.native_memory, "no Python object"),
        Fault(resources.shared_memory, "shared memory"),
        Fault(resources.files_left_open, "open files"),
        Fault(resources.processes_left_running, "child processes"),
        Fault(population.loss_tensors_kept, "workflow.losses_kept", workflow=WorkflowName.population),
        Fault(
            population.loss_tensors_kept_without_backward,
            "workflow.losses_kept",
            workflow=WorkflowName.population,
        ),
    )
}


def find_fault(name: str) -> Fault:
    """Return a fault by its name.

    Raises:
        UserError: If there is none of that name.
    """
    if name not in FAULTS:
        raise UserError(
            f"certify.fault={name}: there is no such fault; choose one of {', '.join(FAULTS)}."
            + did_you_mean(name, FAULTS)
        )
    return FAULTS[name]
