"""The two guards of acting, and how to take each away: no_grad, and detaching what the RSSM keeps."""

import functools
from dataclasses import replace
from enum import StrEnum
from typing import Any

from ...models import LatentState, Observed
from ...workflows.world_models import DreamerWorkflow


class Detached(StrEnum):
    """How much acting's `observe` detaches of what it returns and of the state it caches."""

    full = "full"
    """All of it: what Reverie does."""

    half_returned = "half (returned, not cached)"
    """What it returns and not what it caches: the fault of the incident."""

    half_stoch = "half (stoch, not deter)"
    """The cached latents and not the recurrent state beside them."""

    none = "none"
    """Nothing."""


def act_with_graph(workflow: DreamerWorkflow) -> None:
    """Let `collect_step` run with gradients: the function that `torch.no_grad` wraps."""
    open_workflow: Any = workflow
    unguarded = type(open_workflow).collect_step.__wrapped__
    open_workflow.collect_step = functools.partial(unguarded, workflow)


def observe_detaching(workflow: DreamerWorkflow, detached: Detached) -> None:
    """Let acting's `observe` detach only so much; that of learning stays as it is."""
    rssm: Any = workflow.world_model.rssm
    observe = rssm.observe

    def detaching(*args: Any, detach_posteriors: bool = False, **kwargs: Any) -> Observed:
        if not detach_posteriors or detached is Detached.full:
            return observe(*args, detach_posteriors=detach_posteriors, **kwargs)
        observed = observe(*args, detach_posteriors=False, **kwargs)
        if detached is Detached.half_stoch and rssm._state is not None:
            rssm._state = LatentState(rssm._state.deter, rssm._state.stoch.detach())
        return _without_graph(observed) if detached is Detached.half_returned else observed

    rssm.observe = detaching


def _without_graph(observed: Observed) -> Observed:
    return replace(
        observed,
        posterior=observed.posterior.detach(),
        posterior_logits=observed.posterior_logits.detach(),
        prior_logits=observed.prior_logits.detach(),
    )
