"""Dreamer whose updates and steps of acting are one CUDA graph each; they allocate nothing and never wait."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...buffers import NO_POSITIONS, OBSERVATION_PREFIX, STEP_FIELDS, SequenceBatch, StoredLatent
from ...models import LatentState
from ...utils.cuda_graph import CUDAGraphCall
from ..base import UpdateOutput
from .dreamer import DreamerWorkflow


class CUDAGraphDreamer(DreamerWorkflow):
    """Dreamer on CUDA, captured; learns bit for bit as `DreamerWorkflow` does with the same kernels.

    Batches must keep their size. The next update overwrites `deter` and `stoch` of an `UpdateOutput`, and the
    next step of acting the results of this one.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        generators = [g for g in (self.noise["update"].generator,) if g is not None]
        self._joint = CUDAGraphUpdate(super().update, self.device, generators, "the update")
        self._warm_up = CUDAGraphUpdate(
            super().update_world_model, self.device, generators, "the update of the world model"
        )
        self._acting = CUDAGraphCall(self._act_on_tensors, self.device, (), "the step of acting")

    def update(self, batch: SequenceBatch) -> UpdateOutput:
        """Make one update of world model and controller."""
        return self._joint(batch)

    def update_world_model(self, batch: SequenceBatch) -> UpdateOutput:
        """Make one update of the world model alone."""
        return self._warm_up(batch)

    def _policy_step(
        self,
        observation: dict[str, Tensor],
        is_first: Tensor,
        prev_action: Tensor,
        latent_noise: Tensor,
        action_noise: Tensor,
        state: LatentState | None,
    ) -> tuple[Tensor, LatentState]:
        if state is not None:  # evaluation: few steps, and another number of environments
            return super()._policy_step(observation, is_first, prev_action, latent_noise, action_noise, state)
        rssm = self.world_model.rssm
        before = rssm.online_state(len(prev_action))
        inputs = {"is_first": is_first, "prev_action": prev_action}
        inputs |= {"latent_noise": latent_noise, "action_noise": action_noise}
        inputs |= {"deter": before.deter, "stoch": before.stoch}
        inputs |= {OBSERVATION_PREFIX + key: value for key, value in observation.items()}
        outputs = self._acting(inputs)
        after = LatentState(outputs["deter"], outputs["stoch"])
        rssm.set_online_state(after)
        return outputs["action"], after

    def _act_on_tensors(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        state = LatentState(inputs["deter"], inputs["stoch"])
        with torch.no_grad():
            action, state = super()._policy_step(
                _observation_of(inputs),
                inputs["is_first"],
                inputs["prev_action"],
                inputs["latent_noise"],
                inputs["action_noise"],
                state,
            )
        return {"action": action, "deter": state.deter, "stoch": state.stoch}


class CUDAGraphUpdate:
    """An update as a captured call; takes batches and results apart into tensors and joins them again.

    `NonFiniteGuard` reads metrics, flag and gradient norms one update later, so they alternate between two
    copies.
    """

    def __init__(
        self,
        update: Callable[[SequenceBatch], UpdateOutput],
        device: torch.device,
        generators: list[torch.Generator],
        name: str,
    ) -> None:
        self._update = update
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._call = CUDAGraphCall(self._on_tensors, device, generators, name)
        self._kept: list[dict[str, Tensor]] = []

    def __call__(self, batch: SequenceBatch) -> UpdateOutput:
        """Make one update."""
        results = self._call(_tensors_of(batch))
        if len(self._kept) < 2:
            self._kept.append({name: results[name].clone() for name in ("metrics", "finite", "norms")})
        else:
            self._kept.reverse()
            for name, copy in self._kept[1].items():
                copy.copy_(results[name])
        kept, (metric_names, gradient_names) = self._kept[-1], self._names
        return UpdateOutput(
            metrics=dict(zip(metric_names, kept["metrics"].unbind(), strict=True)),
            deter=results["deter"],
            stoch=results["stoch"],
            finite=kept["finite"],
            gradient_norms=kept["norms"],
            gradient_names=gradient_names,
        )

    def _on_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        output = self._update(_batch_of(tensors))
        self._names = (tuple(output.metrics), output.gradient_names)
        return {
            "metrics": torch.stack([value.float() for value in output.metrics.values()]),
            "deter": output.deter,
            "stoch": output.stoch,
            "finite": output.finite,
            "norms": output.gradient_norms,
        }


def _tensors_of(batch: SequenceBatch) -> dict[str, Tensor]:
    """Return the tensors of a batch by name, without its positions."""
    tensors = {OBSERVATION_PREFIX + key: value for key, value in batch.observation.items()}
    tensors |= {name: getattr(batch, name) for name in STEP_FIELDS}
    if batch.context is not None:
        tensors |= {"deter": batch.context.deter, "stoch": batch.context.stoch}
    return tensors


def _batch_of(tensors: dict[str, Tensor]) -> SequenceBatch:
    """Return the batch that these tensors came from."""
    context = StoredLatent(tensors["deter"], tensors["stoch"]) if "deter" in tensors else None
    flat = {name: tensors[name] for name in STEP_FIELDS}
    return SequenceBatch(
        observation=_observation_of(tensors), context=context, positions=NO_POSITIONS, **flat
    )


def _observation_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(OBSERVATION_PREFIX): value
        for name, value in tensors.items()
        if name.startswith(OBSERVATION_PREFIX)
    }
