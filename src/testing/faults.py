"""Inject the memory leaks of past incident reports into a real run: `certify.fault=<name>`."""

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
from ..workflows.population.members import Members
from ..workflows.population.td3 import Microbatch
from ..workflows.world_models import DreamerWorkflow


@dataclass(frozen=True, slots=True)
class Fault:
    """A leak that can be enabled in runs of one workflow."""

    inject: Callable[[Any], object]
    """Modifies an orchestrator of this workflow before its run starts."""

    culprit: str
    """Text that the diagnosis must contain: a part of the path, or a description if there is no path."""

    verdict: str = "leak"
    workflow: WorkflowName = WorkflowName.dreamer


class Detached(StrEnum):
    """The results and cached states that `observe` detaches while acting."""

    full = "full"
    """Reverie's behavior."""
    half_returned = "half (returned, not cached)"
    """The fault of the incident."""
    half_stoch = "half (stoch, not deter)"
    """Detaches the cached latents but not the recurrent state."""
    none = "none"


def rssm_cache_not_detached(run: WorldModelOrchestrator) -> None:
    """Remove both safeguards of acting: `no_grad`, and detaching the RSSM's results and cached state."""
    act_unguarded(run, Detached.none)


def rssm_returns_detached_cache_not(run: WorldModelOrchestrator) -> None:
    """Detach the RSSM's results but not its cached state. This reproduces the incident."""
    act_unguarded(run, Detached.half_returned)


def loss_tensors_kept(run: PopulationOrchestrator) -> None:
    """Keep every loss after its backward pass without detaching it. This reproduces the incident."""
    kept = attach(run.parts.workflow, "losses_kept", [])
    after_call(run.parts.workflow.td3, "total", lambda total: kept().append(total))


def loss_tensors_kept_without_backward(run: PopulationOrchestrator) -> None:
    """Compute each critic loss again for logging, and keep it. No backward pass ever frees its graph."""
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
    """Return a fault by name. Raise `UserError` if the name is unknown."""
    if name not in FAULTS:
        known = f"Choose one of {', '.join(FAULTS)}.{did_you_mean(name, FAULTS)}"
        raise UserError(f"certify.fault={name} is not a known fault. {known}")
    return FAULTS[name]


def act_unguarded(run: WorldModelOrchestrator, detached: Detached) -> None:
    """Make a run act with gradients, detaching only the given parts."""
    act_with_graph(run.parts.workflow)
    observe_detaching(run.parts.workflow, detached)


def act_with_graph(workflow: DreamerWorkflow) -> None:
    """Replace `collect_step` with the function wrapped by `torch.no_grad`, so that acting builds graphs."""
    open_workflow: Any = workflow
    unguarded = type(open_workflow).collect_step.__wrapped__
    open_workflow.collect_step = functools.partial(unguarded, workflow)


def observe_detaching(workflow: DreamerWorkflow, detached: Detached) -> None:
    """Make `observe` detach only the given parts while acting. Learning is unaffected."""
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
    """Add an attribute to an object, and return a function that reads it."""
    setattr(owner, name, value)
    # A strong reference would create a second path to the leaked objects.
    known = weakref.proxy(owner)
    return lambda: getattr(known, name)


def after_call(owner: Any, method: str, act: Callable[[Any], None]) -> None:
    """Call `act` with the result of each call of a method."""
    original = getattr(owner, method)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        act(result)
        return result

    setattr(owner, method, wrapped)
