"""What can only be checked with the environment and the disk at hand, before anything is created."""

from pathlib import Path

import torch

from ..buffers import check_storage, plan_replay
from ..envs import spec_of
from ..models import check_images
from ..utils.errors import UserError
from ..utils.records import EnvSpec
from ..workflows.population import require_vectors
from .build import replay_request
from .config import TrainConfig, WorkflowName, actual_device
from .engines.rollouts import longest_episode
from .memory_plan import Compose, require_fit
from .memory_plan.population import least_capacity
from .memory_plan.ray_rows import require_room
from .mirror.identity import check_mirror
from .run_folder import EXPERIMENTS, check_run_folder


def check_run(config: TrainConfig, compose: Compose | None = None) -> None:
    """Check that a run can start: its environment exists, its folder is free, and memory and disk suffice.

    Starts one environment for a moment, to learn the shapes that replay must hold.

    Args:
        config: The run.
        compose: Gives the run with one more override, so that another model can be proposed.

    Raises:
        UserError: If it cannot; nothing was created.
    """
    check_run_folder(config)
    check_mirror(config)
    spec = environment_spec(config)
    # The machine's limits before the budget: "raise the budget" is then advice that the machine can follow.
    require_fit(config, spec, compose)
    request = replay_request(config, spec)
    device = torch.device(actual_device(config.device).value)
    require_room(config, spec)
    check_storage(request, plan_replay(request), device, Path(config.run_dir or EXPERIMENTS))


def environment_spec(config: TrainConfig) -> EnvSpec:
    """Return what the environments of a run deliver; one of them is started for a moment, in this process.

    Raises:
        UserError: If there is no such environment, or the networks cannot take what it shows.
    """
    spec = spec_of(config.env)
    check_images(spec.observation)
    if config.workflow is WorkflowName.population:
        require_vectors(spec)
        _require_room(config, spec)
    return spec


def _require_room(config: TrainConfig, spec: EnvSpec) -> None:
    """Refuse a replay that a population could not fill with whole episodes to the point where it learns."""
    capacity, needed = config.buffer.capacity, least_capacity(config, spec)
    if capacity < needed:
        episode, starts = longest_episode(spec) + 1, config.training.learning_starts
        learning = f" beside training.learning_starts={starts}" if config.population.gradient else ""
        raise UserError(
            f"buffer.capacity={capacity} has no room for an episode of {episode} records{learning}. "
            f"Set buffer.capacity={needed} or more."
        )
