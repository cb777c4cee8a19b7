"""Faults that keep autograd graphs alive, the subject of the incident reports."""

import functools
import itertools
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator
from reverie.testing.faults import Detached, act_unguarded, act_with_graph, attach

from .wrap import after_total, after_update

GLOBAL_TRACE: list[Tensor] = []
"""A list in which a user's module might collect values for debugging. No component of a run owns it."""


def rssm_half_detached(run: WorldModelOrchestrator) -> None:
    """Detach the cached latents, but not the recurrent state alongside them."""
    act_unguarded(run, Detached.half_stoch)


def rssm_kept_sometimes(run: WorldModelOrchestrator) -> None:
    """Keep every 5th state with its graph, for a plot that is never drawn."""
    rssm = run.parts.workflow.world_model.rssm
    act_with_graph(run.parts.workflow)
    kept, calls = attach(run.parts.workflow, "kept_states", []), itertools.count()
    observe = rssm.observe

    def keeps(*args: Any, detach_posteriors: bool = False, **kwargs: Any) -> Any:
        observed = observe(*args, detach_posteriors=False, **kwargs)
        if detach_posteriors and next(calls) % 5 == 0:
            kept().append(observed.posterior)
        if rssm._state is not None:
            rssm._state = rssm._state.detach()
        return observed

    rssm.observe = keeps


def losses_after_backward(run: WorldModelOrchestrator) -> None:
    """Keep every loss, undetached, after its backward pass. The nodes remain, but their buffers are freed."""
    kept = attach(run.parts.workflow, "losses_kept", [])
    after_total(run, lambda total: kept().append(total))


def losses_with_retained_graph(run: WorldModelOrchestrator) -> None:
    """Keep every loss, with a backward pass that retains its graph."""
    kept = attach(run.parts.workflow, "losses_kept", [])

    def keep(total: Any) -> None:
        total.backward = functools.partial(torch.Tensor.backward, total, retain_graph=True)
        kept().append(total)

    after_total(run, keep)


def moving_average_of_losses(run: WorldModelOrchestrator) -> None:
    """Average the loss without detaching it, so that all updates are chained."""
    workflow: Any = weakref.proxy(run.parts.workflow)
    workflow.average_loss = torch.zeros((), device=workflow.device)

    def average(total: Tensor) -> None:
        workflow.average_loss = 0.99 * workflow.average_loss + 0.01 * total

    after_total(run, average)


def gradient_of_gradient(run: WorldModelOrchestrator) -> None:
    """Create a gradient with `create_graph=True`: parameter and gradient reference each other in C++."""

    def penalise(_: object) -> None:
        parameter = nn.Parameter(torch.ones(50_000, device=run.parts.workflow.device))
        # PyTorch itself warns about this fault.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parameter.square().sum().backward(create_graph=True)

    after_update(run, penalise)


def global_trace(run: WorldModelOrchestrator) -> None:
    """Collect losses in a global list of a module that no component owns."""
    GLOBAL_TRACE.clear()
    after_total(run, lambda total: GLOBAL_TRACE.append(total * 1.0))
