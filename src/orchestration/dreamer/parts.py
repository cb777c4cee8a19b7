"""Build the parts of a Dreamer run."""

from pathlib import Path

import torch

from ...buffers import LatentSpec, ReplaySpec
from ...config.dreamer import DreamerTrainConfig
from ...config.schema import Compile, Precision
from ...envs import VectorEnvironment, make_environment
from ...utils.timestep import EnvSpec
from ...workflows.world_models import CompiledDreamer, CUDAGraphDreamer, DreamerConfig, DreamerWorkflow
from ..parts import Parts, begin_run, build_replay

DreamerParts = Parts[VectorEnvironment, DreamerWorkflow]


def build_dreamer(config: DreamerTrainConfig, run_dir: Path) -> DreamerParts:
    """Return the parts of a run; seeds the global generators, which initialise the parameters."""
    snapshots = begin_run(config, run_dir)
    environment = make_environment(config.env, config.seed)
    return Parts(
        environment=environment,
        replay=build_replay(config, replay_spec(config, environment.spec), run_dir),
        workflow=build_workflow(config, environment.spec),
        snapshots=snapshots,
    )


def build_workflow(config: DreamerTrainConfig, env: EnvSpec) -> DreamerWorkflow:
    """Return Dreamer for an environment, its parameters initialised."""
    kinds = {Compile.graph: CUDAGraphDreamer, Compile.inductor: CompiledDreamer}
    kind = kinds.get(config.compile, DreamerWorkflow)
    device = torch.device(config.device.value)
    return kind(env, workflow_config(config), device, autocast_dtype(config), config.seed)


def replay_spec(config: DreamerTrainConfig, env: EnvSpec) -> ReplaySpec:
    """Return everything that the size of the replay depends on; `env.num_envs` of the run counts."""
    return ReplaySpec(
        config=config.buffer,
        observation=env.observation,
        action=env.action,
        num_envs=config.env.num_envs,
        window_length=config.training.sequence_length + 1,
        latent=LatentSpec(config.model.deter, config.model.stoch),
    )


def workflow_config(config: DreamerTrainConfig) -> DreamerConfig:
    """Return the parts of a run's configuration that Dreamer reads."""
    return DreamerConfig(
        model=config.model,
        world_model=config.world_model,
        controller=config.controller,
        optimizer=config.optimizer,
    )


def autocast_dtype(config: DreamerTrainConfig) -> torch.dtype:
    """Return the dtype of matrix products and convolutions."""
    return torch.bfloat16 if config.precision is Precision.bfloat16 else torch.float32
