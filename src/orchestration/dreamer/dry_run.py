"""Dry run of an update to measure its memory exactly, without data, memory or a device.

The networks are built on torch's `meta` device, where tensors have shapes but no memory. They run real
training updates while every storage is counted from creation to release.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...buffers import LatentSpec, ReplaySpec, SequenceBatch, record_fields
from ...config.dreamer import DreamerTrainConfig
from ...config.schema import Device, Precision
from ...models import meta_stands_for
from ...planning.recipe import GRADIENTS, DryRun, Labels
from ...planning.torch_modes import DeviceForward, LiveBytes, MetaShapes
from ...utils.components import own_classes
from ...utils.errors import CODE_FAULTS, UserError, with_place
from ...utils.ranks import Ranks
from ...utils.timestep import EnvSpec
from ...workflows import UpdateOutput
from ...workflows.world_models import DreamerConfig, DreamerWorkflow, batch_of

# CUDA's caching allocator rounds every block up to a multiple of this many bytes.
CUDA_GRANULARITY = 512
META = torch.device("meta")
_LASTING = ("parameters", "slow critic", "optimizer state", "online state")
_MOST_STEPS = 2048
"""Maximum number of trained steps in an update for a full dry run (about a second)."""

_LEAST_WINDOWS = 8
"""Minimum number of windows in the shorter dry run used for extrapolation."""

# A process uses only a few combinations of networks and batches, at a few hundred bytes each.
_REMEMBERED: dict[str, DryRun] = {}


class _Rehearsal(DreamerWorkflow):
    """Dreamer on the meta device, labeling each part of an update for a counter."""

    def __init__(self, config: DreamerTrainConfig, spec: EnvSpec, size: int, counter: LiveBytes) -> None:
        self._counter = counter
        self._forward_dtype = autocast_dtype(config)
        self._is_cuda = config.device is Device.cuda
        self._parts = iter(())
        super().__init__(spec, workflow_config(config), META)
        # Each rank briefly allocates the noise for the whole batch.
        self.noise["update"] = replace(self.noise["update"], ranks=Ranks(size=size))

        def count(parameter: Tensor) -> None:
            assert parameter.grad is not None
            counter.count([parameter.grad], GRADIENTS)

        for parameter in (*self.world_model.parameters(), *self.controller.parameters()):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(count)

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        """Return the sum of all losses. The backward pass and the optimizer step come next."""
        self._counter.label = "backward pass and optimizer step"
        return super().total(losses)

    def begin(self) -> None:
        """Reset the labels before an update."""
        # These are the autocast regions of `losses`.
        self._parts = iter(("world model", "controller", "controller"))
        self._counter.label = "activations of the world model"

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        self._counter.label = f"activations of the {next(self._parts)}"
        if self._is_cuda or self._forward_dtype is not torch.float32:
            return DeviceForward(self._forward_dtype)
        return contextlib.nullcontext()


def dry_run(config: DreamerTrainConfig, spec: EnvSpec, size: int = 1) -> DryRun:
    """Return the device memory that one of `size` ranks uses for its networks and their updates.

    Results are cached by shape for the life of the process. The dry run does not allocate memory or advance
    random generators.

    On a CPU the networks process images in groups, so the number of operators grows with the batch. Beyond
    `_MOST_STEPS` trained steps, the result is extrapolated linearly from two smaller batches. The measured
    error was 0 to 14 %, and largest in bfloat16.

    This takes 0.2 to 0.5 s on one core, plus 0.7 s the first time for torch's Python shape functions (75 MB).
    The time grows with the window length, up to a minute for 1,000 steps.
    """
    training, buffer = config.training, config.buffer
    shapes = (
        (config.model, config.world_model, config.controller, config.device, config.precision),
        (training.batch_size, training.sequence_length, training.warmup_steps > 0, size),
        (
            buffer.store_latents,
            buffer.latent_dtype,
            buffer.sampler,
            spec.observation,
            spec.action,
            spec.num_envs,
        ),
    )
    key = repr(shapes)
    if key not in _REMEMBERED:
        own = own_classes(config)
        windows = max(_LEAST_WINDOWS, _MOST_STEPS // (2 * training.sequence_length))
        is_large = config.device is Device.cpu and training.batch_size > 2 * windows
        try:
            _REMEMBERED[key] = (
                _extrapolate(config, spec, size, windows) if is_large else _rehearse(config, spec, size)
            )
        except CODE_FAULTS as error:
            if not own or isinstance(error, UserError):
                raise
            raise UserError(
                f"{', '.join(own)}: an update on torch's meta device, which plans memory, failed with "
                f"{with_place(error)}. Use only operators of torch, with shapes that do not depend on values."
            ) from error
    return _REMEMBERED[key]


def _extrapolate(config: DreamerTrainConfig, spec: EnvSpec, size: int, windows: int) -> DryRun:
    """Extrapolate linearly from two dry runs, with `windows` and with twice as many windows."""
    batches = (replace(config.training, batch_size=count) for count in (windows, 2 * windows))
    one, two = (dry_run(replace(config, training=training), spec, size) for training in batches)
    more = config.training.batch_size / windows - 2

    def at(less: int, nbytes: int) -> int:
        return nbytes + round(more * (nbytes - less))

    phases = {
        name: {label: at(one.phases[name].get(label, 0), nbytes) for label, nbytes in labels.items()}
        for name, labels in two.phases.items()
    }
    return replace(two, phases=phases, operators=at(one.operators, two.operators))


def _rehearse(config: DreamerTrainConfig, spec: EnvSpec, size: int) -> DryRun:
    counter = LiveBytes(CUDA_GRANULARITY if config.device is Device.cuda else 1)
    with MetaShapes(), counter, meta_stands_for(config.device.value):
        with META:
            workflow = _Rehearsal(config, spec, size, counter)
        state = _label_state(workflow, counter)
        updates = {"update": workflow.update}
        if config.training.warmup_steps:
            updates["warm-up update"] = workflow.update_world_model
        phases: dict[str, Labels] = {}
        operators = 0
        for name, update in updates.items():
            before = counter.operators
            phases[name] = _peak_of(workflow, update, config, counter)
            operators = max(operators, counter.operators - before)
    nbytes = sum(tensor.nbytes for tensor in state)
    return DryRun(workflow.num_parameters, phases, nbytes, operators, lasting=_LASTING, batch="batch")


def _label_state(workflow: _Rehearsal, counter: LiveBytes) -> list[Tensor]:
    """Count the persistent tensors under their labels, and return the tensors that a checkpoint contains."""
    modules = (workflow.world_model, workflow.controller)
    networks = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    optimizers = tree_leaves([optimizer.state_dict() for optimizer in workflow.optimizers.values()])
    counter.count(networks, "parameters")
    counter.count(list(workflow.controller.slow_critic.parameters()), "slow critic")
    counter.count(optimizers, "optimizer state")
    counter.count([workflow._prev_action], "online state")
    return [*networks, *optimizers]


def _peak_of(
    workflow: _Rehearsal,
    update: Callable[[SequenceBatch], UpdateOutput],
    config: DreamerTrainConfig,
    counter: LiveBytes,
) -> Labels:
    """Return the bytes by label at the peak of the second of two updates."""
    counter.label = "batch"
    batch = _batch(config, workflow.env, config.training.sequence_length, META)
    workflow.begin()
    updated = update(batch)
    # The loop references the result of the last update until the next one replaces it.
    counter.count([updated.deter, updated.stoch, *updated.metrics.values()], "last update's latents")
    latents = counter.live_by_label["last update's latents"]
    state = dict.fromkeys((*_LASTING, GRADIENTS), 0)
    labels = state | {name: size for name, size in counter.peak_by_label.items() if size}
    counter.reset_peak()
    del updated, batch
    counter.reset_peak()
    return labels | {"last update's latents": latents}


def updates_on_zeros(config: DreamerTrainConfig, spec: EnvSpec) -> Iterator[Callable[[], object]]:
    """Yield CPU updates of temporary networks on windows of 2, 4, 8, ... steps, up to the run's length.

    The imagination horizon shrinks in proportion.
    """
    whole, length, device = config.training.sequence_length, 2, torch.device("cpu")
    while True:
        shorter = workflow_config(config)
        horizon = math.ceil(config.controller.horizon * length / whole)
        shorter.controller = replace(config.controller, horizon=horizon)
        workflow = DreamerWorkflow(spec, shorter, device, autocast_dtype(config))
        batch = _batch(config, spec, length, device).map(torch.zeros_like)
        yield partial(workflow.update, batch)
        if length == whole:
            return
        length = min(2 * length, whole)


def _batch(config: DreamerTrainConfig, spec: EnvSpec, length: int, device: torch.device) -> SequenceBatch:
    """Return an uninitialized batch in the replay's format, with latents only for column 0."""
    size, tensors = config.training.batch_size, dict[str, Tensor]()
    for name, field in record_fields(replay_spec(config, spec)).items():
        lead = (size,) if name in ("deter", "stoch") else (size, length + 1)
        tensors[name] = torch.empty((*lead, *field.shape), dtype=field.dtype, device=device)
    return batch_of(tensors)


def replay_spec(config: DreamerTrainConfig, env: EnvSpec) -> ReplaySpec:
    """Return the parameters that determine the replay's size, using the run's `env.num_envs`."""
    length, latent = config.training.sequence_length + 1, LatentSpec(config.model.deter, config.model.stoch)
    return ReplaySpec(config.buffer, env.observation, env.action, config.env.num_envs, length, latent)


def workflow_config(config: DreamerTrainConfig) -> DreamerConfig:
    """Return the sections of the run's configuration that Dreamer uses."""
    sections = {name: getattr(config, name) for name in ("model", "world_model", "controller", "optimizer")}
    return DreamerConfig(**sections, has_window_losses=config.buffer.sampler != "uniform")


def autocast_dtype(config: DreamerTrainConfig) -> torch.dtype:
    """Return the dtype in which matrix products and convolutions are computed."""
    return torch.bfloat16 if config.precision is Precision.bfloat16 else torch.float32
