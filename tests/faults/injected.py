"""All faults of the zoo that are injected into the run itself, by name."""

from reverie.testing.faults import FAULTS as OF_THE_INCIDENTS
from reverie.testing.faults import Fault

from . import containers, graphs, resources

_STATE = "workflow.world_model.rssm._state"

FAULTS: dict[str, Fault] = OF_THE_INCIDENTS | {
    fault.inject.__name__: fault
    for fault in (
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
        Fault(resources.native_memory, "not seen in Python's heap"),
        Fault(resources.shared_memory, ".shared"),
        Fault(resources.files_left_open, "open files"),
        Fault(resources.processes_left_running, "child processes"),
    )
}
