"""The largest model and replay that a card of a given size can train."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..buffers import largest_capacity
from ..config.schema import TrainConfig
from ..utils.errors import UserError
from ..utils.timestep import EnvSpec
from .plan import plan_run
from .recipe import Recipe
from .resources import GPU, MemoryPlan
from .suggestions import largest_capacity_that_fits, model_sizes

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest run of its kind that fits."""

    fit_gib: float
    model: str
    capacity: int
    plan: MemoryPlan

    def flat(self) -> dict[str, str | float | int | bool | None]:
        """Return one flat object: `fit.gib`, `fit.model`, `fit.capacity`, and the keys of the plan."""
        return {
            "fit.gib": self.fit_gib,
            "fit.model": self.model,
            "fit.capacity": self.capacity,
            **self.plan.flat(),
        }


def largest_fit(compose: Callable[[str], TrainConfig], spec: EnvSpec, recipe: Recipe, fit_gib: float) -> Fit:
    """Return the largest model preset whose updates fit a card, and the largest replay beside it.

    The replay stays within `buffer.memory_budget_gib` and the memory and disk of this machine; with
    `buffer.storage=cuda` it shares the card.

    Args:
        compose: Gives the run's configuration for device=cuda with a preset of `configs/model`.
        spec: Its environments.
        recipe: Its kind.
        fit_gib: Memory of the card in GiB.

    Raises:
        UserError: If the smallest preset does not fit.

    Cost: about four plans of a model, 0.5 s each.
    """
    limit = int(fit_gib * _GIB)
    configs = {name: compose(name) for name in model_sizes()}
    smallest = {
        name: replace(c, buffer=replace(c.buffer, capacity=recipe.least_capacity(c, spec)))
        for name, c in configs.items()
    }

    def fits(name: str) -> bool:
        return plan_run(smallest[name], spec, recipe, limit).resource(GPU).fits

    name = _last_that(fits, list(configs))
    if name is None:
        first = next(iter(configs))
        needed = plan_run(smallest[first], spec, recipe, limit).resource(GPU).total_bytes / _GIB
        raise UserError(
            f"plan.fit_gib={fit_gib:g}: the smallest model, {first}, needs {needed:.2f} GiB with these "
            "settings. Lower training.batch_size or training.sequence_length."
        )
    config = configs[name]
    most = largest_capacity(recipe.replay_spec(config, spec), int(config.buffer.memory_budget_gib * _GIB))
    config = replace(
        config, buffer=replace(config.buffer, capacity=max(most, recipe.least_capacity(config, spec)))
    )
    capacity = largest_capacity_that_fits(config, spec, recipe, limit)
    if capacity is None:
        raise UserError(
            f"plan.fit_gib={fit_gib:g}: {name} fits the card, but no replay beside it fits this machine."
        )
    config = replace(config, buffer=replace(config.buffer, capacity=capacity))
    return Fit(fit_gib, name, capacity, plan_run(config, spec, recipe, limit))


def _last_that(holds: Callable[[str], bool], names: Sequence[str]) -> str | None:
    """Return the last of the names, from small to large, for which `holds` is true."""
    low, high = 0, len(names)  # names before `low` hold, those from `high` on do not
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(names[middle]) else (low, middle)
    return names[low - 1] if low else None
