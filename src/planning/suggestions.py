"""Suggest changes that make a run fit, each verified by a plan, and find the largest run for a GPU."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

from omegaconf import OmegaConf

from ..buffers import largest_capacity, plan_replay
from ..config.presets import model_presets
from ..config.resolve import typed
from ..config.schema import Device, TrainConfig
from ..memory.config import OnPlan
from ..utils.errors import UserError
from ..utils.timestep import EnvSpec
from ..utils.units import size_text
from .plan import plan_run
from .recipe import Recipe
from .resources import ADDRESS, DISK, GPU, HOST, MemoryPlan, Resource, limit_text, need_text

Compose = Callable[[str], TrainConfig]
"""Returns the configuration for the same command line plus one override that chooses a group's file."""

_GIB = 2**30
_MOST_CHANGES = 3
# Messages list the rows above this fraction of the total.
_SHOWN_SHARE = 0.1


def require_fit(
    plan: MemoryPlan, config: TrainConfig, spec: EnvSpec, recipe: Recipe, compose: Compose | None = None
) -> None:
    """If memory.plan=refuse and a plan exceeds a limit, raise a `UserError` with up to three fixes."""
    if not plan.over or config.memory.plan is not OnPlan.refuse:
        return
    changes = list(islice(fitting_changes(plan, config, spec, recipe, compose), _MOST_CHANGES))
    repair = f"Set {' or '.join(changes)}" if changes else "No single change makes it fit"
    if plan.over[0].name == DISK and not changes:
        repair = "Set run_dir to a folder on a disk with more space"
    if plan.over[0].name == ADDRESS:
        # The next process may be slightly larger than the current one.
        more = f"Raise it: ulimit -v {-(-plan.over[0].total_bytes * 101 // 102400)}"
        repair = f"{more}, or set {' or '.join(changes)}" if changes else more
    raise UserError(f"{over_text(plan.over[0])}. {repair}. To start it anyway, set memory.plan=warn.")


def over_text(resource: Resource) -> str:
    """Return a sentence (without its period) about a resource that exceeds its limit."""
    rows = sorted(resource.rows, key=lambda row: -row.nbytes)[:2]
    least = _SHOWN_SHARE * resource.total_bytes
    largest = ", ".join(f"{row.name} {size_text(row.nbytes)}" for row in rows if row.nbytes > least)
    needed = f"{need_text(resource)} of {resource.name} ({largest})"
    return f"This run needs {needed}, over {limit_text(resource)}"


def fitting_changes(
    plan: MemoryPlan, config: TrainConfig, spec: EnvSpec, recipe: Recipe, compose: Compose | None = None
) -> Iterator[str]:
    """Yield single key=value changes that bring a run within all limits.

    Group choices (model=...) are suggested only if `compose` is given. Each change takes up to 1 s to plan.
    """
    over = {HOST if resource.name == ADDRESS else resource.name for resource in plan.over}
    kinds: list[tuple[Iterable[str], Compose]] = []
    of_settings = partial(changed, config)
    if config.resume:
        # The checkpoint determines the capacity.
        kinds.append((["buffer.storage=mmap"] * (HOST in over), of_settings))
    elif (capacity := largest_capacity_that_fits(config, spec, recipe)) is not None:
        yield f"buffer.capacity={capacity}"
    if GPU in over or (HOST in over and config.device is Device.cpu):
        batches = (f"training.batch_size={size}" for size in halves(config.training.batch_size, 1))
        kinds.append((batches, of_settings))
    kinds += [(candidates, of_settings) for candidates in recipe.smaller(config, over)]
    if compose is not None and recipe.has_model_presets:
        smaller = (name for name in reversed(model_sizes()) if _millions(name) * 10**6 < plan.num_parameters)
        kinds.append(((f"model={name}" for name in smaller), compose))
    for candidates, make in kinds:
        fitting = (change for change in candidates if _fits(partial(make, change), spec, recipe))
        yield from islice(fitting, 1)


def largest_capacity_that_fits(
    config: TrainConfig, spec: EnvSpec, recipe: Recipe, gpu_bytes: int | None = None
) -> int | None:
    """Return the largest round capacity with which the run fits, up to the configured one, or `None`."""

    def is_too_large(capacity: int) -> bool:
        return not _fits(lambda: _with_capacity(config, capacity), spec, recipe, gpu_bytes)

    if not is_too_large(config.buffer.capacity):
        return config.buffer.capacity
    capacities = range(recipe.least_capacity(config, spec), config.buffer.capacity)
    count = bisect_left(capacities, True, key=is_too_large)
    if not count:
        return None
    most = capacities[count - 1]
    # The run's process may be slightly larger than the current process.
    most -= most // 100
    unit = 10 ** max(0, len(str(most)) - 2)
    return max(capacities[0], most // unit * unit)


def _with_capacity(config: TrainConfig, capacity: int) -> TrainConfig:
    return replace(config, buffer=replace(config.buffer, capacity=capacity))


def changed(config: TrainConfig, change: str) -> TrainConfig:
    """Apply a key=value change to a configuration. Raise a `UserError` if the result is inconsistent."""
    key, value = change.split("=")
    structured = OmegaConf.structured(config)
    OmegaConf.update(structured, key, value)
    return typed(structured, must_run_here=False)


def halves(number: int, least: int) -> Iterator[int]:
    """Yield a number divided by 2, 4, 8, ... while the result is at least `least`."""
    while number // 2 >= least:
        number //= 2
        yield number


def model_sizes() -> list[str]:
    """Return the presets of `configs/model` that are named `size<n>m`, smallest first."""
    return sorted((name for name in model_presets() if re.fullmatch(r"size\d+m", name)), key=_millions)


def _millions(name: str) -> int:
    """Return the number of parameters in millions, as given by a preset's name."""
    return int(name.removeprefix("size").removesuffix("m"))


def _fits(
    make: Callable[[], TrainConfig], spec: EnvSpec, recipe: Recipe, gpu_bytes: int | None = None
) -> bool:
    """Return whether a run is valid, its replay is within budget, and its plan is within all limits."""
    try:
        config = make()
        recipe.check(config, spec)
        plan_replay(recipe.replay_spec(recipe.part(config), spec))
    except UserError:
        return False
    return not plan_run(config, spec, recipe, gpu_bytes).over


def largest_fit(compose: Compose, spec: EnvSpec, recipe: Recipe, gib: float) -> tuple[str, int, MemoryPlan]:
    """Return the largest model preset that fits a GPU of `gib` GiB, its largest replay, and the plan.

    The replay must fit `buffer.memory_budget_gib` and this machine. With `buffer.storage=cuda` it shares the
    GPU with the model. Each rank has its own GPU. `compose` returns the run for device=cuda with a given
    preset. This makes about four plans, which take 0.5 s each.

    Raises:
        UserError: If the smallest preset does not fit.
    """
    limit, names = int(gib * _GIB), model_sizes()

    def card(name: str) -> Resource:
        config = compose(name)
        smallest = _with_capacity(config, recipe.least_capacity(config, spec))
        return plan_run(smallest, spec, recipe, limit).resource(GPU)

    count = bisect_left(names, True, key=lambda name: not card(name).fits)
    if not count:
        needed = f"{card(names[0]).total_bytes / _GIB:.2f} GiB with these settings"
        raise UserError(
            f"plan.fit_gib={gib:g}: the smallest model, {names[0]}, needs {needed}. "
            "Lower training.batch_size or training.sequence_length."
        )
    name = names[count - 1]
    config = compose(name)
    own = recipe.part(config)
    most = largest_capacity(recipe.replay_spec(own, spec), int(own.buffer.memory_budget_gib * _GIB))
    most *= recipe.ranks.size
    config = _with_capacity(config, max(most, recipe.least_capacity(config, spec)))
    capacity = largest_capacity_that_fits(config, spec, recipe, limit)
    if capacity is None:
        fits = f"{name} fits the GPU, but this machine has too little memory for a replay"
        raise UserError(f"plan.fit_gib={gib:g}: {fits}. Lower plan.fit_gib or env.num_envs.")
    return name, capacity, plan_run(_with_capacity(config, capacity), spec, recipe, limit)
