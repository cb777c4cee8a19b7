"""What would fit, each planned before it is proposed: changes to a run, and the largest run for a card."""

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
from ..utils.units import count_text, size_text
from .plan import plan_run
from .recipe import Recipe
from .resources import ADDRESS, DISK, GPU, HOST, MemoryPlan, Resource, limit_text

Compose = Callable[[str], TrainConfig]
"""Gives the configuration of the same command line with one more override, a choice of a group."""

_GIB = 2**30
_MOST_CHANGES = 3
_WORTH_NAMING = 0.1  # share of the total


def require_fit(
    plan: MemoryPlan, config: TrainConfig, spec: EnvSpec, recipe: Recipe, compose: Compose | None = None
) -> None:
    """Refuse a plan over a limit, unless `memory.plan=warn`; the error names up to three changes that fit."""
    if not plan.over or config.memory.plan is not OnPlan.refuse:
        return
    changes = list(islice(fitting_changes(plan, config, spec, recipe, compose), _MOST_CHANGES))
    repair = f"Set {' or '.join(changes)}" if changes else "No single change makes it fit"
    if plan.over[0].name == DISK and not changes:
        repair = "Set run_dir to a folder on a disk with more room"
    if plan.over[0].name == ADDRESS:
        more = f"Raise it: ulimit -v {-(-plan.over[0].total_bytes // 1024)}"
        repair = f"{more}, or set {' or '.join(changes)}" if changes else more
    raise UserError(f"{over_text(plan.over[0])}. {repair}; memory.plan=warn starts it regardless.")


def over_text(resource: Resource) -> str:
    """Return what is over which limit, as the beginning of a sentence."""
    total = resource.total_bytes
    ranks = (
        f" on {count_text(resource.num_sharing, 'rank')}, {size_text(total)} on each"
        if resource.num_sharing > 1
        else ""
    )
    rows = sorted(resource.rows, key=lambda row: -row.nbytes)[:2]
    largest = [f"{row.name} {size_text(row.nbytes)}" for row in rows if row.nbytes > _WORTH_NAMING * total]
    needed = f"{size_text(resource.shared_bytes)} of {resource.name}{ranks} ({', '.join(largest)})"
    return f"This run needs {needed}, over {limit_text(resource)}"


def fitting_changes(
    plan: MemoryPlan, config: TrainConfig, spec: EnvSpec, recipe: Recipe, compose: Compose | None = None
) -> Iterator[str]:
    """Yield single changes of a run over some limit, as they are typed; the whole run fits with each.

    Without `compose` no choice of a group (model=...) is proposed. Cost: up to 1 s for each change.
    """
    over = {HOST if resource.name == ADDRESS else resource.name for resource in plan.over}
    capacity = largest_capacity_that_fits(config, spec, recipe)
    if capacity is not None:
        yield f"buffer.capacity={capacity}"
    kinds: list[tuple[Iterable[str], Compose]] = []
    of_settings = partial(changed, config)
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
    """Return the largest round capacity up to that of `config` with which the run fits, or None."""

    def is_too_large(capacity: int) -> bool:
        return not _fits(lambda: _with_capacity(config, capacity), spec, recipe, gpu_bytes)

    if not is_too_large(config.buffer.capacity):
        return config.buffer.capacity
    capacities = range(recipe.least_capacity(config, spec), config.buffer.capacity)
    count = bisect_left(capacities, True, key=is_too_large)
    if not count:
        return None
    most = capacities[count - 1]
    most -= most // 100  # the process that will run may be a little larger than this one
    unit = 10 ** max(0, len(str(most)) - 2)
    return max(capacities[0], most // unit * unit)


def _with_capacity(config: TrainConfig, capacity: int) -> TrainConfig:
    return replace(config, buffer=replace(config.buffer, capacity=capacity))


def changed(config: TrainConfig, change: str) -> TrainConfig:
    """Return a configuration with one setting changed, key=value; refuse one at odds with itself."""
    key, value = change.split("=")
    structured = OmegaConf.structured(config)
    OmegaConf.update(structured, key, value)
    return typed(structured, must_run_here=False)


def halves(number: int, least: int) -> Iterator[int]:
    """Yield half of a number, half of that, and so on, as long as it is at least `least`."""
    while number // 2 >= least:
        number //= 2
        yield number


def model_sizes() -> list[str]:
    """Return the presets of `configs/model` that are named by their size, smallest first."""
    return sorted((name for name in model_presets() if re.fullmatch(r"size\d+m", name)), key=_millions)


def _millions(name: str) -> int:
    """Return the millions of parameters that a preset's name tells."""
    return int(name.removeprefix("size").removesuffix("m"))


def _fits(
    make: Callable[[], TrainConfig], spec: EnvSpec, recipe: Recipe, gpu_bytes: int | None = None
) -> bool:
    """Return whether a run is possible, its replay within its budget, and its plan within every limit."""
    try:
        config = make()
        recipe.check(config, spec)
        plan_replay(recipe.replay_spec(recipe.part(config), spec))
    except UserError:
        return False
    return not plan_run(config, spec, recipe, gpu_bytes).over


def largest_fit(compose: Compose, spec: EnvSpec, recipe: Recipe, gib: float) -> tuple[str, int, MemoryPlan]:
    """Return the largest model preset whose updates fit a card, the largest replay next to it, and the plan.

    The replay stays within `buffer.memory_budget_gib` and this machine; with `buffer.storage=cuda` it shares
    the card. Of several ranks each has such a card. `compose` gives the run for device=cuda with a preset.
    Cost: about four plans, 0.5 s each.

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
        fits = f"{name} fits the card, but no replay fits this machine with it"
        raise UserError(f"plan.fit_gib={gib:g}: {fits}.")
    return name, capacity, plan_run(_with_capacity(config, capacity), spec, recipe, limit)
