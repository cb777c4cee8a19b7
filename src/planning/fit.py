"""The largest model and replay that a card of a given size can train."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..buffers import largest_capacity
from ..config.schema import TrainConfig
from ..utils.errors import UserError
from ..utils.timestep import EnvSpec
from .plan import plan_run
from .recipe import Recipe
from .resources import GPU, MemoryPlan, Resource
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
        found = {"fit.gib": self.fit_gib, "fit.model": self.model, "fit.capacity": self.capacity}
        return found | self.plan.flat()


def largest_fit(compose: Callable[[str], TrainConfig], spec: EnvSpec, recipe: Recipe, fit_gib: float) -> Fit:
    """Return the largest model preset whose updates fit a card, and the largest replay next to it.

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
    limit, names = int(fit_gib * _GIB), model_sizes()

    def with_capacity(config: TrainConfig, capacity: int) -> TrainConfig:
        return replace(config, buffer=replace(config.buffer, capacity=capacity))

    def card(name: str) -> Resource:
        config = compose(name)
        smallest = with_capacity(config, recipe.least_capacity(config, spec))
        return plan_run(smallest, spec, recipe, limit).resource(GPU)

    count = bisect_left(names, True, key=lambda name: not card(name).fits)
    if not count:
        raise UserError(
            f"plan.fit_gib={fit_gib:g}: the smallest model, {names[0]}, needs "
            f"{card(names[0]).total_bytes / _GIB:.2f} GiB with these settings. Lower training.batch_size or "
            "training.sequence_length."
        )
    name = names[count - 1]
    config = compose(name)
    most = largest_capacity(recipe.replay_spec(config, spec), int(config.buffer.memory_budget_gib * _GIB))
    config = with_capacity(config, max(most, recipe.least_capacity(config, spec)))
    capacity = largest_capacity_that_fits(config, spec, recipe, limit)
    if capacity is None:
        raise UserError(
            f"plan.fit_gib={fit_gib:g}: {name} fits the card, but no replay fits this machine with it."
        )
    return Fit(fit_gib, name, capacity, plan_run(with_capacity(config, capacity), spec, recipe, limit))
