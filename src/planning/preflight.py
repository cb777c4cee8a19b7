"""Check a run's environment, folder, memory and disk before creating anything."""

from dataclasses import dataclass
from pathlib import Path

import torch

from ..buffers import check_storage, plan_replay
from ..checkpoints.run_folder import EXPERIMENTS, check_run_folder
from ..config.schema import TrainConfig
from ..utils.timestep import EnvSpec
from .plan import plan_run
from .recipe import Recipe, environment_spec
from .resources import MemoryPlan
from .suggestions import Compose, require_fit


@dataclass(frozen=True, slots=True)
class Preflight:
    """Environment spec and plan of a run that has not been built yet."""

    env: EnvSpec
    plan: MemoryPlan


def check_run(config: TrainConfig, recipe: Recipe, compose: Compose | None = None) -> Preflight:
    """Raise a `UserError` unless the environment works, the folder is free, and memory and disk suffice.

    This creates no files.
    """
    check_run_folder(config)
    if config.checkpoint.mirror:
        from ..checkpoints.mirror import check_mirror

        check_mirror(config.checkpoint.mirror, config.run_dir)
    found = preflight_of(config, recipe)
    # Check the machine's limits first, so that errors about the replay's budget may advise raising it.
    require_fit(found.plan, config, found.env, recipe, compose)
    # Check the whole run before this rank's share, so that errors quote the user's numbers.
    plan_replay(recipe.replay_spec(config, found.env))
    request = recipe.replay_spec(recipe.part(config), found.env)
    device = torch.device(config.device.value)
    check_storage(request, plan_replay(request), device, Path(config.run_dir or EXPERIMENTS))
    return found


def preflight_of(config: TrainConfig, recipe: Recipe) -> Preflight:
    """Start one environment briefly and plan the run, without checking the folder or any limits."""
    env = environment_spec(config, recipe)
    return Preflight(env, plan_run(config, env, recipe))
