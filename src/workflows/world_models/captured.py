"""Dreamer whose updates and steps of acting are one CUDA graph each: they allocate nothing and never wait."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...buffers import NOWHERE, STEP_FIELDS, SequenceBatch, StoredLatent
from ...models import LatentState
from ...utils.cuda_graph import CapturedCall
from ..base import Updated
from .dreamer import DreamerWorkflow

OBSERVATION = "observation/"


class CapturedDreamer(DreamerWorkflow):
    """Dreamer on CUDA, captured; learns bit for bit what `DreamerWorkflow` does with the same kernels.

    Batches must keep their size. `deter` and `stoch` of an `Updated` are overwritten by the next update, and
    what acting returns by the next step.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        generators = [g for g in (self.noise["update"].generator,) if g is not None]
        self._joint = CapturedUpdate(super().update, self.device, generators, "the update")
        self._warm_up = CapturedUpdate(
            super().update_world_model, self.device, generators, "the update of the world model"
        )
        self._acting = CapturedCall(self._act_on_tensors, self.device, (), "the step of acting")

    def update(self, batch: SequenceBatch) -> Updated:
        """Make one update of world model and controller."""
        return self._joint(batch)

    def update_world_model(self, batch: SequenceBatch) -> Updated:
        """Make one update of the world model alone."""
        return self._warm_up(batch)

    def _policy_step(
        self,
        observation: dict[str, Tensor],
        is_first: Tensor,
        prev_action: Tensor,
        races: Tensor,
        draws: Tensor,
        state: LatentState | None,
    ) -> tuple[Tensor, LatentState]:
        if state is not None:  # evaluation: few steps, and another number of environments
            return super()._policy_step(observation, is_first, prev_action, races, draws, state)
        rssm = self.world_model.rssm
        before = rssm.online_state(len(prev_action))
        inputs = {"is_first": is_first, "prev_action": prev_action, "races": races, "draws": draws}
        inputs |= {"deter": before.deter, "stoch": before.stoch}
        inputs |= {OBSERVATION + key: value for key, value in observation.items()}
        outputs = self._acting(inputs)
        after = LatentState(outputs["deter"], outputs["stoch"])
        rssm.go_on_from(after)
        return outputs["action"], after

    def _act_on_tensors(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        names = ("is_first", "prev_action", "races", "draws")
        state = LatentState(inputs["deter"], inputs["stoch"])
        is_first, prev_action, races, draws = (inputs[name] for name in names)
        with torch.no_grad():
            action, state = super()._policy_step(
                _observation_of(inputs), is_first, prev_action, races, draws, state
            )
        return {"action": action, "deter": state.deter, "stoch": state.stoch}


class CapturedUpdate:
    """An update as a captured call, batches and results taken apart into tensors and put together again.

    Metrics, flag and gradient norms are judged one update later (`NonFiniteGuard`), so they are kept in two
    places by turns.
    """

    def __init__(
        self,
        update: Callable[[SequenceBatch], Updated],
        device: torch.device,
        generators: list[torch.Generator],
        name: str,
    ) -> None:
        self._update = update
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._call = CapturedCall(self._on_tensors, device, generators, name)
        self._kept: list[dict[str, Tensor]] = []

    def __call__(self, batch: SequenceBatch) -> Updated:
        """Make one update."""
        results = self._call(_tensors_of(batch))
        if len(self._kept) < 2:
            self._kept.append({name: results[name].clone() for name in ("metrics", "finite", "norms")})
        else:
            self._kept.reverse()
            for name, place in self._kept[1].items():
                place.copy_(results[name])
        kept, (metric_names, gradient_names) = self._kept[-1], self._names
        return Updated(
            metrics=dict(zip(metric_names, kept["metrics"].unbind(), strict=True)),
            deter=results["deter"],
            stoch=results["stoch"],
            finite=kept["finite"],
            gradient_norms=kept["norms"],
            gradient_names=gradient_names,
        )

    def _on_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        updated = self._update(_batch_of(tensors))
        self._names = (tuple(updated.metrics), updated.gradient_names)
        return {
            "metrics": torch.stack([value.float() for value in updated.metrics.values()]),
            "deter": updated.deter,
            "stoch": updated.stoch,
            "finite": updated.finite,
            "norms": updated.gradient_norms,
        }


def _tensors_of(batch: SequenceBatch) -> dict[str, Tensor]:
    """Return the tensors of a batch by name; where its windows came from stays behind."""
    tensors = {OBSERVATION + key: value for key, value in batch.observation.items()}
    tensors |= {name: getattr(batch, name) for name in STEP_FIELDS}
    if batch.context is not None:
        tensors |= {"deter": batch.context.deter, "stoch": batch.context.stoch}
    return tensors


def _batch_of(tensors: dict[str, Tensor]) -> SequenceBatch:
    """Return the batch of such tensors."""
    context = StoredLatent(tensors["deter"], tensors["stoch"]) if "deter" in tensors else None
    flat = {name: tensors[name] for name in STEP_FIELDS}
    return SequenceBatch(observation=_observation_of(tensors), context=context, positions=NOWHERE, **flat)


def _observation_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(OBSERVATION): v for k, v in tensors.items() if k.startswith(OBSERVATION)}
