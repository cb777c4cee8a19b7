"""Changes of a run that make its plan fit: each is planned before it is proposed."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from omegaconf import OmegaConf

from ...buffers import ReplayStorage, plan_replay
from ...utils.errors import UserError
from ...utils.records import EnvSpec
from ..banner import model_presets
from ..build import replay_request
from ..config import Device, Precision, TrainConfig, WorkflowName, typed
from .plan import plan_run
from .population import least_capacity
from .rehearsal import rehearse
from .resources import DISK, GPU, HOST, MemoryPlan

Compose = Callable[[str], TrainConfig]
"""Gives the configuration of the same command line with one more override, a choice of a group."""


def fitting_changes(
    plan: MemoryPlan, config: TrainConfig, spec: EnvSpec, compose: Compose | None = None
) -> Iterator[str]:
    """Yield single changes, as they are typed; the whole run was planned with each, and fits.

    Args:
        plan: The plan of `config`, over some limit.
        config: The run.
        spec: Its environments.
        compose: For choices of groups (model=...); None proposes single settings only.

    Cost: up to 1 s for each change that is yielded.
    """
    over = {resource.name for resource in plan.over}
    capacity = largest_capacity_that_fits(config, spec)
    if capacity is not None:
        yield f"buffer.capacity={capacity}"
    for candidates in _settings(config, over):
        found = next((c for c in candidates if _fits(partial(changed, config, c), spec)), None)
        if found is not None:
            yield found
    if compose is not None and config.workflow is WorkflowName.dreamer:
        for name in _smaller_models(config, spec):
            if _fits(partial(compose, f"model={name}"), spec):
                yield f"model={name}"
                break


def largest_capacity_that_fits(
    config: TrainConfig, spec: EnvSpec, gpu_limit_bytes: int | None = None
) -> int | None:
    """Return the largest capacity up to that of `config`, in round numbers, with which the run fits.

    None if it does not fit with the smallest one either. A hundredth is left free, for the process that will
    run may be a little larger than this one.
    """

    def fits(capacity: int) -> bool:
        return _fits(
            lambda: replace(config, buffer=replace(config.buffer, capacity=capacity)), spec, gpu_limit_bytes
        )

    least = least_capacity(config, spec)
    low, high = least, config.buffer.capacity
    if fits(high):
        return high
    if not fits(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    low -= low // 100
    unit = 10 ** max(0, len(str(low)) - 2)
    return max(least, low // unit * unit)


def changed(config: TrainConfig, change: str) -> TrainConfig:
    """Return a configuration with one setting changed, `change` being key=value.

    Raises:
        UserError: If the result is at odds with itself.
    """
    key, value = change.split("=")
    structured = OmegaConf.structured(config)
    OmegaConf.update(structured, key, value)
    return typed(structured, must_run_here=False)


def model_sizes() -> list[str]:
    """Return the presets of `configs/model` that are named by their size, smallest first."""
    names = [name for name in model_presets() if re.fullmatch(r"size\d+m", name)]
    return sorted(names, key=lambda name: int(name[4:-1]))


def _settings(config: TrainConfig, over: set[str]) -> Iterator[Iterable[str]]:
    """Yield kinds of change, those that cost learning least first; in each the smallest change is first."""
    storage = config.buffer.storage
    if DISK in over:
        keep = config.training.keep_checkpoints
        yield (f"training.keep_checkpoints={count}" for count in range(keep - 1, 0, -1))
        if storage is ReplayStorage.mmap:
            yield ["buffer.storage=ram"]
    if HOST in over and storage is ReplayStorage.ram:
        yield ["buffer.storage=mmap"]
    if GPU in over and storage is ReplayStorage.cuda:
        yield ["buffer.storage=ram"]
    if GPU in over and config.precision is Precision.float32:
        yield ["precision=bfloat16"]
    if GPU in over or (HOST in over and config.device is Device.cpu):
        yield (f"training.batch_size={size}" for size in _halves(config.training.batch_size, 1))
        if config.workflow is WorkflowName.dreamer:
            yield (f"training.sequence_length={size}" for size in _halves(config.training.sequence_length, 8))
        else:
            yield (f"td3.hidden_units={size}" for size in _halves(config.td3.hidden_units, 16))
    if HOST in over and config.workflow is WorkflowName.population:  # where the episodes are played
        yield (f"population.episodes={count}" for count in _halves(config.population.episodes, 1))


def _smaller_models(config: TrainConfig, spec: EnvSpec) -> Iterator[str]:
    """Yield the presets with fewer parameters than the run's model, largest first."""
    parameters = rehearse(config, spec).num_parameters
    for name in reversed(model_sizes()):
        if int(name[4:-1]) * 1_000_000 < parameters:
            yield name


def _halves(number: int, least: int) -> Iterator[int]:
    while number // 2 >= least:
        number //= 2
        yield number


def _fits(make: Callable[[], TrainConfig], spec: EnvSpec, gpu_limit_bytes: int | None = None) -> bool:
    """Return whether a run is possible, its replay within its budget, and its plan within every limit."""
    try:
        config = make()
        plan_replay(replay_request(config, spec))
    except UserError:
        return False
    return not plan_run(config, spec, gpu_limit_bytes).over
