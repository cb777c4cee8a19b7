"""Check a run before anything of it is created: its environment, folder, memory and disk."""

from dataclasses import dataclass
from pathlib import Path

import torch

from ..buffers import check_storage, plan_replay
from ..checkpoints.mirror import check_mirror
from ..checkpoints.run_folder import EXPERIMENTS, check_run_folder
from ..config.schema import TrainConfig
from ..envs import spec_of
from ..utils.timestep import EnvSpec
from .plan import plan_run
from .recipe import Recipe
from .resources import MemoryPlan
from .suggestions import Compose, require_fit


@dataclass(frozen=True, slots=True)
class Preflight:
    """What is known of a run before it is built."""

    env: EnvSpec
    plan: MemoryPlan


def check_run(config: TrainConfig, recipe: Recipe, compose: Compose | None = None) -> Preflight:
    """Refuse a run without an environment, a free folder, or enough memory and disk; nothing is created."""
    check_run_folder(config)
    check_mirror(config)
    found = preflight_of(config, recipe)
    # The machine's limits before the budget: "raise the budget" is then advice that the machine can follow.
    require_fit(found.plan, config, found.env, recipe, compose)
    plan_replay(recipe.replay_spec(config, found.env))  # the whole first, in numbers that were typed
    request = recipe.replay_spec(recipe.part(config), found.env)
    device = torch.device(config.device.value)
    check_storage(request, plan_replay(request), device, Path(config.run_dir or EXPERIMENTS))
    return found


def preflight_of(config: TrainConfig, recipe: Recipe) -> Preflight:
    """Start one environment for a moment and plan the run; neither folder nor limits are checked."""
    env = environment_spec(config, recipe)
    return Preflight(env, plan_run(config, env, recipe))


def environment_spec(config: TrainConfig, recipe: Recipe) -> EnvSpec:
    """Return what the environments of a run deliver; one of them is started for a moment, in this process.

    Raises:
        UserError: If there is no such environment, or this kind of run cannot use it.
    """
    env = spec_of(config.env)
    recipe.check(config, env)
    return env
