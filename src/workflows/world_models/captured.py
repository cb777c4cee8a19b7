"""Dreamer whose updates are one CUDA graph each: launched as a whole, allocating nothing, never waiting."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...buffers import NOWHERE, STEP_FIELDS, SequenceBatch, StoredLatent
from ...utils.cuda_graph import CapturedCall
from ..base import Updated
from .dreamer import DreamerWorkflow


class CapturedDreamer(DreamerWorkflow):
    """Dreamer on CUDA, captured; learns bit for bit what `DreamerWorkflow` does with the same kernels.

    Batches must keep their size. `deter` and `stoch` of an `Updated` are overwritten by the next update.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        generators = [g for g in (self.noise["update"].generator,) if g is not None]
        self._joint = CapturedUpdate(super().update, self.device, generators, "the update")
        self._warm_up = CapturedUpdate(
            super().update_world_model, self.device, generators, "the update of the world model"
        )

    def update(self, batch: SequenceBatch) -> Updated:
        """Make one update of world model and controller."""
        return self._joint(batch)

    def update_world_model(self, batch: SequenceBatch) -> Updated:
        """Make one update of the world model alone."""
        return self._warm_up(batch)


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
    tensors = {f"observation/{key}": value for key, value in batch.observation.items()}
    tensors |= {name: getattr(batch, name) for name in STEP_FIELDS}
    if batch.context is not None:
        tensors |= {"deter": batch.context.deter, "stoch": batch.context.stoch}
    return tensors


def _batch_of(tensors: dict[str, Tensor]) -> SequenceBatch:
    """Return the batch of such tensors."""
    prefix = "observation/"
    observation = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    context = StoredLatent(tensors["deter"], tensors["stoch"]) if "deter" in tensors else None
    flat = {name: tensors[name] for name in STEP_FIELDS}
    return SequenceBatch(observation=observation, context=context, positions=NOWHERE, **flat)
