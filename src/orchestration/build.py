"""From a configuration to the objects of a run, in the order of data: the wiring diagram as code."""

from dataclasses import dataclass
from pathlib import Path

import torch

from ..buffers import EpisodeReplayBuffer, LatentSpec, ReplayRequest
from ..envs import VectorEnvironment, make_environment
from ..utils.memory.snapshots import SnapshotRecorder
from ..utils.records import EnvSpec
from ..utils.seeding import choose_deterministic_kernels, numpy_generator, seed_global
from ..workflows.world_models import CapturedDreamer, CompiledDreamer, DreamerConfig, DreamerWorkflow
from .config import Compile, Precision, TrainConfig, actual_device

SNAPSHOTS = "memory_snapshots"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of."""

    environment: VectorEnvironment
    replay: EpisodeReplayBuffer
    workflow: DreamerWorkflow
    snapshots: SnapshotRecorder


def build(config: TrainConfig, run_dir: Path) -> Parts:
    """Return the parts of a run; seeds the global generators, from which parameters are initialised."""
    seed_global(config.seed)
    if config.deterministic:
        choose_deterministic_kernels()
    snapshots = SnapshotRecorder(run_dir / SNAPSHOTS)
    if config.memory.snapshot_interval:
        snapshots.start()  # before the first allocation, so that each has its stack
    environment = make_environment(config.env, config.seed)
    return Parts(
        environment=environment,
        replay=build_replay(config, environment.spec, run_dir),
        workflow=build_workflow(config, environment.spec),
        snapshots=snapshots,
    )


def replay_request(config: TrainConfig, env: EnvSpec) -> ReplayRequest:
    """Return everything that the size of a run's replay depends on; `env.num_envs` of the run counts."""
    return ReplayRequest(
        config=config.buffer,
        observation=env.observation,
        action=env.action,
        num_envs=config.env.num_envs,
        window_length=config.training.sequence_length + 1,
        latent=LatentSpec(config.model.deter, config.model.stoch),
    )


def build_replay(config: TrainConfig, env: EnvSpec, run_dir: Path) -> EpisodeReplayBuffer:
    """Return the replay buffer of a run, all its memory allocated."""
    return EpisodeReplayBuffer(
        config.buffer,
        observation=env.observation,
        action=env.action,
        num_envs=env.num_envs,
        window_length=config.training.sequence_length + 1,
        latent=LatentSpec(config.model.deter, config.model.stoch),
        generator=numpy_generator(config.seed, "replay"),
        device=actual_device(config.device).value,
        directory=run_dir / "replay",
    )


def build_workflow(config: TrainConfig, env: EnvSpec) -> DreamerWorkflow:
    """Return Dreamer for an environment, its parameters initialised."""
    device = torch.device(actual_device(config.device).value)
    kinds = {Compile.graph: CapturedDreamer, Compile.inductor: CompiledDreamer}
    kind = kinds.get(config.compile, DreamerWorkflow)
    return kind(env, workflow_config(config), device, autocast_dtype(config), config.seed)


def workflow_config(config: TrainConfig) -> DreamerConfig:
    """Return the parts of a run's configuration that Dreamer reads."""
    return DreamerConfig(
        model=config.model,
        world_model=config.world_model,
        controller=config.controller,
        optimizer=config.optimizer,
    )


def autocast_dtype(config: TrainConfig) -> torch.dtype:
    """Return the dtype of matrix products and convolutions."""
    return torch.bfloat16 if config.precision is Precision.bfloat16 else torch.float32
