"""The faults of the incident reports, injected into a real run on purpose: `certify.fault=<name>`."""

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from torch import Tensor

from ..config.schema import WorkflowName
from ..models import LatentState, RSSMOutput
from ..orchestration.population.orchestrator import PopulationOrchestrator
from ..orchestration.world_model_orchestrator import WorldModelOrchestrator
from ..utils.errors import UserError, did_you_mean
from ..workflows.population import Members, Microbatch
from ..workflows.world_models import DreamerWorkflow


@dataclass(frozen=True, slots=True)
class Fault:
    """A leak that can be switched on, in the runs of one workflow."""

    inject: Callable[[Any], object]
    """Changes an orchestrator of the workflow that has not begun."""

    culprit: str
    """What the diagnosis has to name: a part of the path, or a word for what has no path."""

    verdict: str = "leak"
    workflow: WorkflowName = WorkflowName.dreamer


class Detached(StrEnum):
    """How much acting's `observe` detaches of what it returns and of the state it caches."""

    full = "full"  # what Reverie does
    half_returned = "half (returned, not cached)"  # the fault of the incident
    half_stoch = "half (stoch, not deter)"  # the cached latents, not the recurrent state next to them
    none = "none"


def rssm_cache_not_detached(run: WorldModelOrchestrator) -> None:
    """Take away both guards of acting: no_grad, and detaching what the RSSM returns and caches."""
    act_unguarded(run, Detached.none)


def rssm_returns_detached_cache_not(run: WorldModelOrchestrator) -> None:
    """Detach what the RSSM returns and not what it caches: the fault of the incident."""
    act_unguarded(run, Detached.half_returned)


def loss_tensors_kept(run: PopulationOrchestrator) -> None:
    """Keep every loss, undetached, after its backward pass: the fault of the incident."""
    kept = attach(run.parts.workflow, "losses_kept", [])
    after_call(run.parts.workflow.td3, "total", lambda total: kept().append(total))


def loss_tensors_kept_without_backward(run: PopulationOrchestrator) -> None:
    """Compute each critic's loss once more for the log and keep it: no backward pass frees its graph."""
    kept = attach(run.parts.workflow, "losses_kept", [])
    td3: Any = run.parts.workflow.td3
    update = td3.update

    def logs(members: Members, parts: Sequence[Microbatch]) -> dict[str, Tensor]:
        leaves = {name: each.detach().requires_grad_() for name, each in members.networks["critic"].items()}
        kept().append(td3.critic_loss(members, leaves, parts[0]).sum())
        return update(members, parts)

    td3.update = logs


_STATE = "workflow.world_model.rssm._state"

FAULTS: dict[str, Fault] = {
    fault.inject.__name__: fault
    for fault in (
        Fault(rssm_cache_not_detached, _STATE),
        Fault(rssm_returns_detached_cache_not, _STATE),
        Fault(loss_tensors_kept, "workflow.losses_kept", workflow=WorkflowName.population),
        Fault(loss_tensors_kept_without_backward, "workflow.losses_kept", workflow=WorkflowName.population),
    )
}


def find_fault(name: str) -> Fault:
    """Return a fault by its name; refuse a name that none has."""
    if name not in FAULTS:
        known = f"choose one of {', '.join(FAULTS)}.{did_you_mean(name, FAULTS)}"
        raise UserError(f"certify.fault={name}: there is no such fault; {known}")
    return FAULTS[name]


def act_unguarded(run: WorldModelOrchestrator, detached: Detached) -> None:
    """Let a run act with gradients, and detach only so much."""
    act_with_graph(run.parts.workflow)
    observe_detaching(run.parts.workflow, detached)


def act_with_graph(workflow: DreamerWorkflow) -> None:
    """Let `collect_step` run with gradients: the function that `torch.no_grad` wraps."""
    open_workflow: Any = workflow
    unguarded = type(open_workflow).collect_step.__wrapped__
    open_workflow.collect_step = functools.partial(unguarded, workflow)


def observe_detaching(workflow: DreamerWorkflow, detached: Detached) -> None:
    """Let acting's `observe` detach only so much; that of learning stays as it is."""
    rssm: Any = workflow.world_model.rssm
    observe = rssm.observe

    def detaching(*args: Any, detach_posteriors: bool = False, **kwargs: Any) -> RSSMOutput:
        if not detach_posteriors or detached is Detached.full:
            return observe(*args, detach_posteriors=detach_posteriors, **kwargs)
        observed = observe(*args, detach_posteriors=False, **kwargs)
        if detached is Detached.half_stoch and rssm._state is not None:
            rssm._state = LatentState(rssm._state.deter, rssm._state.stoch.detach())
        if detached is Detached.half_returned:
            parts = ("posterior", "posterior_logits", "prior_logits")
            return replace(observed, **{name: getattr(observed, name).detach() for name in parts})
        return observed

    rssm.observe = detaching


def attach(owner: Any, name: str, value: Any) -> Callable[[], Any]:
    """Give an object one more attribute, and return a function that reads it."""
    setattr(owner, name, value)
    known = weakref.proxy(owner)  # the fault's own code must not be a second path to what it keeps
    return lambda: getattr(known, name)


def after_call(owner: Any, method: str, act: Callable[[Any], None]) -> None:
    """Call `act` with what each call of a method returns."""
    original = getattr(owner, method)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        act(result)
        return result

    setattr(owner, method, wrapped)
