"""From a configuration to the objects of a run, in the order of data: the wiring diagram as code."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from ..buffers import EpisodeReplayBuffer, LatentSpec, ReplayRequest
from ..buffers.plan import measure
from ..envs import VectorEnvironment, make_environment, spec_of
from ..utils.memory.snapshots import SnapshotRecorder
from ..utils.records import EnvSpec
from ..utils.seeding import choose_deterministic_kernels, numpy_generator, seed_global
from ..workflows.population import ERLWorkflow
from ..workflows.world_models import CapturedDreamer, CompiledDreamer, DreamerConfig, DreamerWorkflow
from .config import Compile, Precision, TrainConfig, WorkflowName, actual_device
from .engines.base import PopulationEngine
from .engines.config import Engine
from .engines.local import LocalEngine
from .engines.ray_engine import RayEngine
from .engines.ray_traffic import Traffic, traffic
from .engines.ray_worker import WorkerSettings

SNAPSHOTS = "memory_snapshots"


Environment = TypeVar("Environment")
Learner = TypeVar("Learner")


@dataclass(frozen=True, slots=True)
class Parts(Generic[Environment, Learner]):
    """What a run is made of."""

    environment: Environment
    replay: EpisodeReplayBuffer
    workflow: Learner
    snapshots: SnapshotRecorder


DreamerParts = Parts[VectorEnvironment, DreamerWorkflow]
PopulationParts = Parts[PopulationEngine, ERLWorkflow]


def build(config: TrainConfig, run_dir: Path) -> Parts[Any, Any]:
    """Return the parts of a run; seeds the global generators, from which parameters are initialised."""
    if config.workflow is WorkflowName.population:
        return build_population(config, run_dir)
    return build_dreamer(config, run_dir)


def build_dreamer(config: TrainConfig, run_dir: Path) -> DreamerParts:
    """Return the parts of a run of Dreamer, as `build`."""
    snapshots = _begin(config, run_dir)
    environment = make_environment(config.env, config.seed)
    return Parts(
        environment=environment,
        replay=build_replay(config, environment.spec, run_dir),
        workflow=build_workflow(config, environment.spec),
        snapshots=snapshots,
    )


def build_population(config: TrainConfig, run_dir: Path) -> PopulationParts:
    """Return the parts of a run of a population, as `build`."""
    snapshots = _begin(config, run_dir)
    engine = build_engine(config)
    return Parts(
        environment=engine,
        replay=build_replay(config, engine.spec, run_dir),
        workflow=build_erl(config, engine.spec),
        snapshots=snapshots,
    )


def build_engine(config: TrainConfig) -> PopulationEngine:
    """Return where a population plays and learns."""
    if config.engine is Engine.ray:
        spec = spec_of(config.env)
        settings = WorkerSettings(config.env, config.population, config.td3, config.seed)
        return RayEngine(config.ray, settings, spec, ray_traffic(config, spec))
    return LocalEngine(config.env, config.population, config.td3.exploration_noise, config.seed)


def ray_traffic(config: TrainConfig, spec: EnvSpec) -> Traffic:
    """Return what a generation of engine=ray sends; nothing is allocated.

    Raises:
        UserError: If nothing bounds the length of an episode.
    """
    replay = measure(replay_request(config, spec))
    return traffic(config.population, config.td3, spec, replay, config.buffer.capacity)


def build_erl(config: TrainConfig, env: EnvSpec) -> ERLWorkflow:
    """Return the population for an environment, its parameters initialised."""
    device = torch.device(actual_device(config.device).value)
    return ERLWorkflow(env, config.population, config.td3, device, config.seed)


def _begin(config: TrainConfig, run_dir: Path) -> SnapshotRecorder:
    """Seed, and record allocations if so wished, before the first one."""
    seed_global(config.seed)
    if config.deterministic:
        choose_deterministic_kernels()
    snapshots = SnapshotRecorder(run_dir / SNAPSHOTS)
    if config.memory.snapshot_interval:
        snapshots.start()  # before the first allocation, so that each has its stack
    return snapshots


def replay_request(config: TrainConfig, env: EnvSpec) -> ReplayRequest:
    """Return everything that the size of a run's replay depends on; `env.num_envs` of the run counts."""
    if config.workflow is WorkflowName.population:
        # One stream of whole episodes, whoever played them; pairs of records, each inside one episode.
        buffer = replace(config.buffer, store_latents=False, cross_episodes=False)
        return ReplayRequest(buffer, env.observation, env.action, num_envs=1, window_length=2, latent=None)
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
    request = replay_request(config, env)
    return EpisodeReplayBuffer(
        request.config,
        observation=request.observation,
        action=request.action,
        num_envs=request.num_envs,
        window_length=request.window_length,
        latent=request.latent,
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
