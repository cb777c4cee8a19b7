"""Dreamer whose small, often repeated steps are compiled for the CPU by torch's inductor."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ...buffers import SequenceBatch
from ...models import LatentState
from ...utils.compilation import compiled
from ..base import UpdateOutput
from .dreamer import DreamerWorkflow


class CompiledDreamer(DreamerWorkflow):
    """Dreamer on a CPU, whose cost between the large products is the number of its small operators.

    It compiles the step of acting as a whole, and the repeated parts of an update: the steps of scan and
    imagination, the actor, the predictions of imagination. Convolutions and losses are few large operators
    already and run as written. Each part is compiled at its first call, once for each shape; evaluation and
    pictures have other shapes and run as written.

    It learns as `DreamerWorkflow` does, up to rounding: sums may be in another order.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._compiled_policy_step = compiled(self._policy_on_tensors)
        parts = (
            (self.world_model.rssm, "observe_step"),
            (self.world_model.rssm, "imagine_step"),
            (self.world_model, "predict"),
            (self.controller.actor, "forward"),
        )
        self._parts = [(owner, name, compiled(getattr(owner, name))) for owner, name in parts]

    def update(self, batch: SequenceBatch) -> UpdateOutput:
        """Make one update of world model and controller."""
        with self._compiled_parts():
            return super().update(batch)

    def update_world_model(self, batch: SequenceBatch) -> UpdateOutput:
        """Make one update of the world model alone."""
        with self._compiled_parts():
            return super().update_world_model(batch)

    @contextlib.contextmanager
    def _compiled_parts(self) -> Iterator[None]:
        """Use the compiled forms of the networks' steps inside the block."""
        for owner, name, fast in self._parts:
            setattr(owner, name, fast)
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
        latent_noise: Tensor,
        action_noise: Tensor,
        state: LatentState | None,
    ) -> tuple[Tensor, LatentState]:
        if state is not None:
            return super()._policy_step(observation, is_first, prev_action, latent_noise, action_noise, state)
        rssm = self.world_model.rssm
        before = rssm.online_state(len(prev_action))
        action, deter, stoch = self._compiled_policy_step(
            observation, is_first, prev_action, latent_noise, action_noise, before.deter, before.stoch
        )
        after = LatentState(deter, stoch)
        rssm.set_online_state(after)
        return action, after

    def _policy_on_tensors(
        self,
        observation: dict[str, Tensor],
        is_first: Tensor,
        prev_action: Tensor,
        latent_noise: Tensor,
        action_noise: Tensor,
        deter: Tensor,
        stoch: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        state = LatentState(deter, stoch)
        action, state = super()._policy_step(
            observation, is_first, prev_action, latent_noise, action_noise, state
        )
        return action, state.deter, state.stoch
