"""The kinds of runs, with one recipe per workflow."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..config.dreamer import DreamerTrainConfig
from ..config.population import PopulationTrainConfig
from ..config.schema import TrainConfig
from ..planning.recipe import Recipe
from ..utils.ranks import ALONE, Ranks
from ..utils.timestep import EnvSpec

# Loading an agent must not import the parts of a run.
if TYPE_CHECKING:
    from ..workflows import Agent
    from .orchestrator import AnyParts, OpenedRun, Orchestrator


class RunRecipe(Recipe, Protocol):
    """Interface that every kind of run implements."""

    samples_actions: bool
    """Whether evaluation samples actions. Otherwise it uses the policy's mode."""

    gpu_repair: str
    """Advice for when GPU memory is full."""

    def banner_lines(self, config: TrainConfig, env: EnvSpec) -> dict[str, str]:
        """Return additional banner lines, keyed by item."""
        ...

    def build(self, config: TrainConfig, run_dir: Path) -> "AnyParts":
        """Seed the global generators and return the components of a run with initial parameters."""
        ...

    def updates_on_zeros(self, config: TrainConfig, env: EnvSpec) -> Iterator[Callable[[], object]]:
        """Yield CPU updates of temporary networks for timing, from short windows up to the run's own."""
        ...

    def build_agent(self, config: TrainConfig, env: EnvSpec) -> "Agent":
        """Return only the agent, with initial parameters."""
        ...

    def orchestrator(self, opened: "OpenedRun") -> "Orchestrator":
        """Return the run, ready to start or resume."""
        ...


def _dreamer(ranks: Ranks) -> Any:
    from .dreamer.recipe import DreamerRecipe

    return DreamerRecipe(ranks)


def _population(ranks: Ranks) -> Any:
    from .population.recipe import PopulationRecipe

    return PopulationRecipe(ranks)


# A run imports only its own recipe. Each recipe accepts only its own config class, but a dict's type cannot
# express that.
RECIPES: dict[type[TrainConfig], Callable[[Ranks], Any]] = {
    DreamerTrainConfig: _dreamer,
    PopulationTrainConfig: _population,
}


def recipe_of(config: TrainConfig, ranks: Ranks = ALONE) -> RunRecipe:
    """Return the recipe for a run shared by `ranks`."""
    return RECIPES[type(config)](ranks)
