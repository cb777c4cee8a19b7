"""Dreamer with compiled hot paths and, on CUDA, captured graphs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...buffers import NO_POSITIONS, OBSERVATION_PREFIX, STEP_FIELDS, SequenceBatch, StoredLatent
from ...utils.compilation import CUDAGraphCall, compiled
from ..base import UpdateOutput
from .dreamer import DreamerWorkflow, Tensors


class CompiledDreamer(DreamerWorkflow):
    """`DreamerWorkflow` with compiled hot paths. Between large products, kernel launches dominate the time.

    Torch's inductor compiles the acting step and the `parts` of an update, each on its first call, once per
    shape. All other code runs eagerly. Results match `DreamerWorkflow` up to the rounding of reordered sums.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.fast_step = compiled(self.policy_on_tensors)
        self._parts = [(owner, name, compiled(getattr(owner, name))) for owner, name in self.parts()]

    def parts(self) -> list[tuple[Any, str]]:
        """Return the owner and the name of each method to compile in an update."""
        model, actor = self.world_model, self.controller.actor
        steps = [(model.rssm, "observe_step"), (model.rssm, "imagine_step")]
        return [*steps, (model, "predict"), (actor, "choose"), (actor, "forward")]

    def _learn(self, batch: SequenceBatch, controller: bool) -> UpdateOutput:
        for owner, name, fast in self._parts:
            setattr(owner, name, fast)
        try:
            return super()._learn(batch, controller)
        finally:
            for owner, name, _ in self._parts:
                delattr(owner, name)


class CUDAGraphDreamer(DreamerWorkflow):
    """Dreamer with CUDA graphs for acting and for each type of update, without allocations or waits.

    Results match `DreamerWorkflow` bit for bit if the kernels are the same. All batches must have the same
    size. The next update overwrites `deter` and `stoch` of an `UpdateOutput`, and the next acting step
    overwrites the previous results.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        generator = self.noise["update"].generator
        generators = [] if generator is None else [generator]
        step = torch.no_grad()(self.fast_step or self.policy_on_tensors)
        self.fast_step = CUDAGraphCall(step, self.device, (), "the acting step")
        learn, names = super()._learn, {True: "the update", False: "the world-model update"}
        self._updates = {
            controller: CUDAGraphUpdate(partial(learn, controller=controller), self.device, generators, name)
            for controller, name in names.items()
        }

    def _learn(self, batch: SequenceBatch, controller: bool) -> UpdateOutput:
        return self._updates[controller](batch)


class CompiledCUDAGraphDreamer(CUDAGraphDreamer, CompiledDreamer):
    """Dreamer with CUDA graphs of compiled kernels. There are fewer of them than of eager kernels.

    Launch overhead dominates small kernels, so everything except convolutions and large products is compiled.
    Unless kernels must be deterministic, the first update measures which convolution kernels are fastest.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()

    def parts(self) -> list[tuple[Any, str]]:
        """Return the owner and the name of each method to compile in an update."""
        return [
            *super().parts(),
            (self.world_model.encoder, "forward"),
            (self.world_model, "losses"),
            (self.controller, "losses"),
            *((optimizer, "change") for optimizer in self.optimizers.values()),
        ]


class CUDAGraphUpdate:
    """An update as a captured graph. Batches are converted to tensors, and results are converted back.

    Metrics, `finite` and gradient norms alternate between two copies, because they are read one update later.
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
        self._kept: list[Tensors] = []

    def __call__(self, batch: SequenceBatch) -> UpdateOutput:
        """Perform one update."""
        results = self._call(tensors_of(batch))
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
            window_losses=results.get("window_losses"),
        )

    def _on_tensors(self, tensors: Tensors) -> Tensors:
        output = self._update(batch_of(tensors))
        self._names = (tuple(output.metrics), output.gradient_names)
        found = {} if output.window_losses is None else {"window_losses": output.window_losses}
        return found | {
            "metrics": torch.stack([value.float() for value in output.metrics.values()]),
            "deter": output.deter,
            "stoch": output.stoch,
            "finite": output.finite,
            "norms": output.gradient_norms,
        }


def tensors_of(batch: SequenceBatch) -> Tensors:
    """Return a batch's tensors by the names of replay fields, without its positions."""
    tensors = {OBSERVATION_PREFIX + key: value for key, value in batch.observation.items()}
    tensors |= {name: getattr(batch, name) for name in STEP_FIELDS}
    if batch.context is not None:
        tensors |= {"deter": batch.context.deter, "stoch": batch.context.stoch}
    return tensors


def batch_of(tensors: Tensors) -> SequenceBatch:
    """Return the batch of a result of `tensors_of`."""
    keys = [name for name in tensors if name.startswith(OBSERVATION_PREFIX)]
    return SequenceBatch(
        observation={name.removeprefix(OBSERVATION_PREFIX): tensors[name] for name in keys},
        context=StoredLatent(tensors["deter"], tensors["stoch"]) if "deter" in tensors else None,
        positions=NO_POSITIONS,
        **{name: tensors[name] for name in STEP_FIELDS},
    )
