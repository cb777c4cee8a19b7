"""Dreamer whose small, often repeated steps are compiled for the CPU by torch's inductor."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...buffers import SequenceBatch
from ...models import LatentState
from ..base import Updated
from .dreamer import DreamerWorkflow

_LOG = logging.getLogger(__name__)
_OPTIONS = {
    # Both are checks at every call of what cannot change here: sizes between kernels, attributes of modules.
    # Without them a step of acting is a tenth faster.
    "size_asserts": False,
    "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe,
    # Kernels are few: processes that compile beside this one cost more than they save, and they stay.
    "compile_threads": 1,
}


class CompiledDreamer(DreamerWorkflow):
    """Dreamer on a CPU, whose cost between the large products is the number of its small operators.

    Compiled are the step of acting as a whole, and of an update what it repeats: the steps of scan and
    imagination, the actor, the predictions of imagination. Not the convolutions and the losses: those are
    few large operators already. Each is compiled at its first call, once for each shape; evaluation and
    pictures, whose shapes are their own, run as written.

    It learns what `DreamerWorkflow` does, up to rounding: sums may be in another order.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._compiled_policy_step = _compiled(self._policy_on_tensors)
        parts = (
            (self.world_model.rssm, "observe_step"),
            (self.world_model.rssm, "imagine_step"),
            (self.world_model, "predict"),
            (self.controller.actor, "forward"),
        )
        self._parts = [(owner, name, _compiled(getattr(owner, name))) for owner, name in parts]

    def update(self, batch: SequenceBatch) -> Updated:
        """Make one update of world model and controller."""
        with self._compiled_parts():
            return super().update(batch)

    def update_world_model(self, batch: SequenceBatch) -> Updated:
        """Make one update of the world model alone."""
        with self._compiled_parts():
            return super().update_world_model(batch)

    @contextlib.contextmanager
    def _compiled_parts(self) -> Iterator[None]:
        """Let the networks use the compiled forms of their steps."""
        for owner, name, compiled in self._parts:
            setattr(owner, name, compiled)
        try:
            yield
        finally:
            for owner, name, _ in self._parts:
                delattr(owner, name)

    def _policy_step(
        self,
        observation: dict[str, Tensor],
        is_first: Tensor,
        prev_action: Tensor,
        races: Tensor,
        draws: Tensor,
        state: LatentState | None,
    ) -> tuple[Tensor, LatentState]:
        if state is not None:
            return super()._policy_step(observation, is_first, prev_action, races, draws, state)
        rssm = self.world_model.rssm
        before = rssm.online_state(len(prev_action))
        action, deter, stoch = self._compiled_policy_step(
            observation, is_first, prev_action, races, draws, before.deter, before.stoch
        )
        after = LatentState(deter, stoch)
        rssm.go_on_from(after)
        return action, after

    def _policy_on_tensors(
        self,
        observation: dict[str, Tensor],
        is_first: Tensor,
        prev_action: Tensor,
        races: Tensor,
        draws: Tensor,
        deter: Tensor,
        stoch: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        state = LatentState(deter, stoch)
        action, state = super()._policy_step(observation, is_first, prev_action, races, draws, state)
        return action, state.deter, state.stoch


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is compiled at its first call, or stays as written if it cannot be."""
    from torch._dynamo.exc import TorchDynamoException  # not above: it loads the compiler, 75 MB and 2 s

    compiled = torch.compile(function, dynamic=False, options=_OPTIONS)
    is_possible = True

    def call(*args: Any) -> Any:
        nonlocal is_possible
        if is_possible:
            try:
                return compiled(*args)
            except TorchDynamoException as error:
                is_possible = False
                reason, name = str(error).strip().splitlines()[0], function.__name__
                _LOG.warning("%s cannot be compiled here and runs as written: %s", name, reason)
        return function(*args)

    return call
