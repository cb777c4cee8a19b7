"""`reverie-plan`: what a run would take, from the command line of `reverie-train`; creates nothing."""

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

_USAGE = """\
Plan the memory of a run: reverie-plan [any override of reverie-train] [plan.format=json] [plan.fit_gib=6]

  reverie-plan experiment=dreamer_ataripong              what the run takes, and whether it fits this machine
  reverie-plan device=cuda model=size50m                 a GPU is not needed to plan for one
  reverie-plan device=cuda plan.fit_gib=6                the largest model and replay for a card of 6 GiB
  reverie-plan env.num_envs=16 plan.ranks=8              each of 8 ranks of this machine, and all of them

The exit code is 2 if the run does not fit, unless memory.plan=warn.

"""
_WIDTH = 150  # of a table that is not shown on a terminal


class PlanFormat(Enum):
    """How the plan is written."""

    table = "table"
    json = "json"


@dataclass(kw_only=True, slots=True)
class PlanConfig:
    """Settings of `reverie-plan` itself, typed as plan.key=value."""

    format: PlanFormat = PlanFormat.table
    """`table` to read, `json` for one flat object; `MemoryPlan.flat` states its keys."""

    fit_gib: float | None = None
    """Memory of a card in GiB: plans the largest model and replay for it, not the run as it is."""

    ranks: int | None = None
    """Processes that share the run, without starting them; null for those of torchrun, or one."""

    machines: int = 1
    """Machines like this one that the ranks are spread over."""

    def __post_init__(self) -> None:
        require_range("plan", self, "fit_gib", gt=0)
        require_range("plan", self, "ranks", "machines", ge=1)
        if (self.ranks or 1) % self.machines:
            asked, machines = f"plan.ranks={self.ranks or 1}", f"plan.machines={self.machines}"
            repair = f"Set plan.ranks to a multiple of {self.machines}"
            raise UserError(f"{asked} cannot be divided evenly among {machines}. {repair}.")


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run `reverie-plan`; exit code 2 after a mistake, a plan over a limit included."""
    typed_here = sys.argv[1:] if arguments is None else arguments
    plan_config, overrides = own_settings(PlanConfig, typed_here, "plan", _USAGE, "plan.")
    load("..orchestration", "recipe_of")  # imports torch
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
        raise UserError(f"device=cpu has no card to fit; leave it out, or plan.fit_gib={fit_gib:g}.")
    overrides = [*overrides, "device=cuda"]
    config = _compose(overrides)
    recipe = orchestration.recipe_of(config, ranks)
    if not recipe.has_model_presets:
        chosen = f"plan.fit_gib={fit_gib:g} chooses a model and a replay for workflow=dreamer"
        raise UserError(f"{chosen}. Plan a population without it.")

    def compose(name: str) -> TrainConfig:
        return _compose([*overrides, f"model={name}"])

    model, capacity, plan = planning.largest_fit(
        compose, planning.environment_spec(config, recipe), recipe, fit_gib
    )
    _write(plan, form, {"fit.gib": fit_gib, "fit.model": model, "fit.capacity": capacity})


def _compose(overrides: list[str]) -> TrainConfig:
    """Return the run that the overrides ask for; its device need not be here."""
    if any(item.key_or_group == "resume" for item in parse(overrides)):
        raise UserError("resume= is planned when the run continues; leave it out and type the settings.")
    return typed(compose_jobs(overrides)[0], must_run_here=False)


def _write(plan: "planning.MemoryPlan", form: PlanFormat, fit: Mapping[str, Any] | None = None) -> None:
    """Write a plan; `fit` is what fits the card, by the keys of JSON."""
    if form is PlanFormat.json:
        return print(json.dumps({**(fit or {}), **plan.flat()}))
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    planning.show(plan, console)
    if fit is not None:
        gib, model, capacity = fit.values()
        largest = f"device=cuda model={model} buffer.capacity={capacity}"
        console.print(f"Largest for a card of {gib:g} GiB: {largest}", soft_wrap=True)
