"""Changes of a run that make its plan fit: each is planned before it is proposed."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from omegaconf import OmegaConf

from ..buffers import ReplayStorage, plan_replay
from ..config.presets import model_presets
from ..config.resolve import typed
from ..config.schema import Device, Precision, TrainConfig
from ..utils.errors import UserError
from ..utils.timestep import EnvSpec
from .plan import plan_run
from .recipe import Recipe
from .resources import DISK, GPU, HOST, MemoryPlan

Compose = Callable[[str], TrainConfig]
"""Gives the configuration of the same command line with one more override, a choice of a group."""


def fitting_changes(
    plan: MemoryPlan, config: TrainConfig, spec: EnvSpec, recipe: Recipe, compose: Compose | None = None
) -> Iterator[str]:
    """Yield single changes, as they are typed; the whole run was planned with each, and fits.

    Args:
        plan: The plan of `config`, over some limit.
        config: The run.
        spec: Its environments.
        recipe: Its kind.
        compose: For choices of groups (model=...); None proposes single settings only.

    Cost: up to 1 s for each change that is yielded.
    """
    over = {resource.name for resource in plan.over}
    capacity = largest_capacity_that_fits(config, spec, recipe)
    if capacity is not None:
        yield f"buffer.capacity={capacity}"
    for candidates in _settings(config, over, recipe):
        found = next((c for c in candidates if _fits(partial(changed, config, c), spec, recipe)), None)
        if found is not None:
            yield found
    if compose is not None and recipe.has_model_presets:
        for name in _smaller_models(plan.num_parameters):
            if _fits(partial(compose, f"model={name}"), spec, recipe):
                yield f"model={name}"
                break


def largest_capacity_that_fits(
    config: TrainConfig, spec: EnvSpec, recipe: Recipe, gpu_limit_bytes: int | None = None
) -> int | None:
    """Return the largest capacity up to that of `config`, in round numbers, with which the run fits.

    None if it does not fit with the smallest one either. A hundredth is left free, for the process that will
    run may be a little larger than this one.
    """

    def fits(capacity: int) -> bool:
        return _fits(
            lambda: replace(config, buffer=replace(config.buffer, capacity=capacity)),
            spec,
            recipe,
            gpu_limit_bytes,
        )

    least = recipe.least_capacity(config, spec)
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


def _settings(config: TrainConfig, over: set[str], recipe: Recipe) -> Iterator[Iterable[str]]:
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
        yield (f"training.batch_size={size}" for size in halves(config.training.batch_size, 1))
    yield from recipe.smaller(config, over)


def _smaller_models(parameters: int) -> Iterator[str]:
    """Yield the presets with fewer parameters, largest first."""
    for name in reversed(model_sizes()):
        if int(name[4:-1]) * 1_000_000 < parameters:
            yield name


def halves(number: int, least: int) -> Iterator[int]:
    """Yield half of a number, half of that, and so on, as long as it is at least `least`."""
    while number // 2 >= least:
        number //= 2
        yield number


def _fits(
    make: Callable[[], TrainConfig], spec: EnvSpec, recipe: Recipe, gpu_limit_bytes: int | None = None
) -> bool:
    """Return whether a run is possible, its replay within its budget, and its plan within every limit."""
    try:
        config = make()
        plan_replay(recipe.replay_spec(config, spec))
    except UserError:
        return False
    return not plan_run(config, spec, recipe, gpu_limit_bytes).over
