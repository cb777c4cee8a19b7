"""Plan the memory of a run: reverie-plan [any override of reverie-train] [plan.format=json] [plan.fit_gib=6].

  reverie-plan experiment=dreamer_ataripong              the run's memory, and whether it fits
  reverie-plan device=cuda model=size50m                 a plan for a GPU, which need not be present
  reverie-plan device=cuda plan.fit_gib=6                the largest model and replay for a GPU of 6 GiB
  reverie-plan env.num_envs=16 plan.ranks=8              8 ranks on this machine, per rank and in total

The exit code is 2 if the run does not fit, unless memory.plan=warn.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from .. import orchestration, planning
from ..config.compose import compose_jobs
from ..config.overrides import parse
from ..config.resolve import typed
from ..config.schema import TrainConfig
from ..utils.errors import UserError, exit_on_user_error, require_range
from .entry import load
from .options import own_settings

if TYPE_CHECKING:
    from ..utils.ranks import Ranks

# Width in characters of a table that is not printed on a terminal.
_WIDTH = 150


class PlanFormat(Enum):
    """Output format of a plan."""

    table = "table"
    json = "json"


@dataclass(kw_only=True, slots=True)
class PlanConfig:
    """Settings of `reverie-plan`, written as plan.key=value."""

    format: PlanFormat = PlanFormat.table
    """`table` shows MiB or GiB. `json` is a flat object in bytes. `MemoryPlan.flat` documents its keys."""

    fit_gib: float | None = None
    """Memory of a GPU in GiB. If set, plan the largest model and replay that fit it instead of the given
    ones."""

    ranks: int | None = None
    """Number of ranks to plan for, or null for torchrun's number (1 without torchrun)."""

    machines: int = 1
    """Number of identical machines that the ranks run on."""

    def __post_init__(self) -> None:
        require_range("plan", self, "fit_gib", gt=0)
        require_range("plan", self, "ranks", "machines", ge=1)
        if (self.ranks or 1) % self.machines:
            asked, machines = f"plan.ranks={self.ranks or 1}", f"plan.machines={self.machines}"
            repair = f"Set plan.ranks to a multiple of {self.machines}"
            raise UserError(f"{asked} cannot be divided evenly among {machines}. {repair}.")


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run `reverie-plan`. The exit code is 2 after a user error or if the run does not fit."""
    words = sys.argv[1:] if arguments is None else arguments
    plan_config, overrides = own_settings(PlanConfig, words, "reverie-plan", __doc__, "plan.")
    # This imports torch, after the settings have been checked.
    load("..orchestration", "recipe_of")
    from ..utils.process_group import planned_ranks, started_ranks

    size = plan_config.ranks
    ranks = planned_ranks(size, size // plan_config.machines) if size else started_ranks()
    if plan_config.fit_gib is not None:
        return _run_fit(overrides, plan_config.fit_gib, plan_config.format, ranks)
    config = _compose(overrides)
    recipe = orchestration.recipe_of(config, ranks)
    found = planning.preflight_of(config, recipe)
    _write(found.plan, plan_config.format)
    planning.require_fit(found.plan, config, found.env, recipe, lambda change: _compose([*overrides, change]))


def _run_fit(overrides: list[str], fit_gib: float, form: PlanFormat, ranks: "Ranks") -> None:
    devices = [item.value() for item in parse(overrides) if item.key_or_group == "device"]
    if "cpu" in devices:
        raise UserError(f"plan.fit_gib={fit_gib:g} needs device=cuda (got device=cpu). Omit one of them.")
    overrides = [*overrides, "device=cuda"]
    config = _compose(overrides)
    recipe = orchestration.recipe_of(config, ranks)
    if not recipe.has_model_presets:
        chosen = f"plan.fit_gib={fit_gib:g} supports only workflow=dreamer"
        raise UserError(f"{chosen}. Omit it for a population.")

    def compose(name: str) -> TrainConfig:
        return _compose([*overrides, f"model={name}"])

    model, capacity, plan = planning.largest_fit(
        compose, planning.environment_spec(config, recipe), recipe, fit_gib
    )
    _write(plan, form, {"fit.gib": fit_gib, "fit.model": model, "fit.capacity": capacity})


def _compose(overrides: list[str]) -> TrainConfig:
    """Return the configuration that the overrides describe. Its device need not be present."""
    if any(item.key_or_group == "resume" for item in parse(overrides)):
        raise UserError("reverie-plan does not support resume=. Pass the run's settings instead.")
    return typed(compose_jobs(overrides)[0], must_run_here=False)


def _write(plan: "planning.MemoryPlan", form: PlanFormat, fit: Mapping[str, Any] | None = None) -> None:
    """Print a plan. `fit` describes the largest run that fits, by JSON key."""
    if form is PlanFormat.json:
        return print(json.dumps({**(fit or {}), **plan.flat()}))
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    planning.show(plan, console)
    if fit is not None:
        gib, model, capacity = fit.values()
        largest = f"device=cuda model={model} buffer.capacity={capacity}"
        console.print(f"Largest fit for a GPU with {gib:g} GiB: {largest}", soft_wrap=True)
