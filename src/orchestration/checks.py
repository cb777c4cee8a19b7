"""What can only be checked with the environment and the disk at hand, before anything is created."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from ..buffers import LatentSpec, ReplayRequest, check_storage, plan_replay
from ..envs import Vectorization, make_environment, validate_env
from ..models import check_images
from .config import TrainConfig, actual_device
from .run_folder import EXPERIMENTS, check_run_folder


def check_run(config: TrainConfig) -> None:
    """Check that a run can start: its environment exists, its replay fits its budget, its folder is free.

    Starts one environment for a moment, to learn the shapes that replay must hold.

    Raises:
        UserError: If it cannot; nothing was created.
    """
    check_run_folder(config)
    validate_env(config.env)
    alone = replace(config.env, num_envs=1, vectorization=Vectorization.sync)
    with closing(make_environment(alone, config.seed)) as environment:
        spec = environment.spec
    latent = LatentSpec(deter_size=config.model.deter, num_latents=config.model.stoch)
    check_images(spec.observation)
    request = ReplayRequest(
        config=config.buffer,
        observation=spec.observation,
        action=spec.action,
        num_envs=config.env.num_envs,
        window_length=config.training.sequence_length + 1,
        latent=latent if config.buffer.store_latents else None,
    )
    device = torch.device(actual_device(config.device).value)
    check_storage(request, plan_replay(request), device, Path(config.run_dir or EXPERIMENTS))
