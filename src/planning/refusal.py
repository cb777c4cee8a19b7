"""The sentence that refuses a run whose plan is over a limit."""

from itertools import islice

from ..config.schema import TrainConfig
from ..memory.config import OnPlan
from ..utils.errors import UserError
from ..utils.timestep import EnvSpec
from ..utils.units import size_text
from .recipe import Recipe
from .resources import MemoryPlan, Resource
from .suggestions import Compose, fitting_changes
from .table import limit_text

_MOST_CHANGES = 3
_WORTH_NAMING = 0.1  # share of the total


def require_fit(
    plan: MemoryPlan, config: TrainConfig, spec: EnvSpec, recipe: Recipe, compose: Compose | None = None
) -> None:
    """Check that every resource suffices; with `memory.plan=warn` it need not.

    Raises:
        UserError: If a resource does not suffice; it names up to three changes, each of which was planned
            and fits.
    """
    if plan.over and config.memory.plan is OnPlan.refuse:
        changes = list(islice(fitting_changes(plan, config, spec, recipe, compose), _MOST_CHANGES))
        raise UserError(f"{over_text(plan.over[0])}. {_repair(changes)}")


def over_text(resource: Resource) -> str:
    """Return what is over which limit, as the beginning of a sentence."""
    total = resource.total_bytes
    rows = sorted(resource.rows, key=lambda row: -row.nbytes)[:2]
    largest = [f"{row.name} {size_text(row.nbytes)}" for row in rows if row.nbytes > _WORTH_NAMING * total]
    return (
        f"This run needs {size_text(total)} of {resource.name} ({', '.join(largest)}), "
        f"over {limit_text(resource)}"
    )


def _repair(changes: list[str]) -> str:
    regardless = "memory.plan=warn goes on regardless."
    if not changes:
        return f"No single change makes it fit; {regardless}"
    *others, last = changes
    return f"Set {', '.join(others)}{' or ' if others else ''}{last}; {regardless}"
