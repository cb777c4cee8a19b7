"""The kinds of run: one recipe for each workflow."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from ..config.dreamer import DreamerTrainConfig
from ..config.population import PopulationTrainConfig
from ..config.schema import TrainConfig
from ..planning.recipe import Recipe
from ..utils.ranks import ALONE, Ranks
from ..utils.timestep import EnvSpec
from ..workflows import Agent
from .orchestrator import AnyParts, OpenedRun, Orchestrator


class RunRecipe(Recipe, Protocol):
    """All that distinguishes one kind of run from another."""

    samples_actions: bool
    """Whether its policy is stochastic; otherwise it is evaluated by its mode."""

    gpu_repair: str
    """What to do if the GPU is full."""

    def banner_lines(self, config: TrainConfig, env: EnvSpec) -> dict[str, str]:
        """Return its own lines of the banner, by item."""
        ...

    def build(self, config: TrainConfig, run_dir: Path) -> AnyParts:
        """Return the parts of a run; seeds the global generators, which initialise the parameters."""
        ...

    def updates_on_zeros(self, config: TrainConfig, env: EnvSpec) -> Iterator[Callable[[], object]]:
        """Yield updates of temporary networks on a CPU, to be timed: short ones first, up to the run's."""
        ...

    def build_agent(self, config: TrainConfig, env: EnvSpec) -> Agent:
        """Return the agent alone, its parameters initialised."""
        ...

    def orchestrator(self, opened: OpenedRun) -> Orchestrator:
        """Return the run, ready to begin or to continue."""
        ...


def _dreamer(ranks: Ranks) -> Any:
    from .dreamer.recipe import DreamerRecipe

    return DreamerRecipe(ranks)


def _population(ranks: Ranks) -> Any:
    from .population.recipe import PopulationRecipe

    return PopulationRecipe(ranks)


# A run imports its own recipe only. Each recipe takes the runs of its own class alone, which the type of a
# dict cannot say.
RECIPES: dict[type[TrainConfig], Callable[[Ranks], Any]] = {
    DreamerTrainConfig: _dreamer,
    PopulationTrainConfig: _population,
}


def recipe_of(config: TrainConfig, ranks: Ranks = ALONE) -> RunRecipe:
    """Return the recipe of a run that `ranks` share."""
    return RECIPES[type(config)](ranks)
