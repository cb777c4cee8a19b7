"""Build the parts of a population run."""

from dataclasses import asdict
from pathlib import Path

import torch

from ...buffers import ReplaySpec
from ...buffers.plan import plan_unchecked
from ...config.population import Engine, PopulationTrainConfig
from ...envs import EnvConfig, spec_of
from ...utils.timestep import EnvSpec
from ...workflows.population import ERLWorkflow
from ..parts import Parts, begin_run, build_replay
from .engines.base import PopulationEngine
from .engines.local import LocalEngine
from .engines.ray_engine import RayEngine
from .engines.ray_transfer import TransferSize, transfer_size
from .engines.ray_worker import WorkerSettings

PopulationParts = Parts[PopulationEngine, ERLWorkflow]


def build_population(config: PopulationTrainConfig, run_dir: Path) -> PopulationParts:
    """Return the parts of a run; seeds the global generators, which initialise the parameters."""
    snapshots = begin_run(config, run_dir)
    engine = build_engine(config)
    return Parts(
        environment=engine,
        replay=build_replay(config, replay_spec(config, engine.spec), run_dir),
        workflow=build_erl(config, engine.spec),
        snapshots=snapshots,
    )


def build_engine(config: PopulationTrainConfig) -> PopulationEngine:
    """Return the engine that plays and trains a population."""
    if config.engine is Engine.ray:
        spec = spec_of(config.env)
        env = EnvConfig(**asdict(config.env))  # PopulationEnv would load all settings, 30 MB in each worker
        settings = WorkerSettings(env, config.population, config.td3, config.seed)
        return RayEngine(config.ray, settings, spec, ray_transfer_size(config, spec))
    return LocalEngine(config.env, config.population, config.td3.exploration_noise, config.seed)


def build_erl(config: PopulationTrainConfig, env: EnvSpec) -> ERLWorkflow:
    """Return the population for an environment, its parameters initialised."""
    return ERLWorkflow(env, config.population, config.td3, torch.device(config.device.value), config.seed)


def replay_spec(config: PopulationTrainConfig, env: EnvSpec) -> ReplaySpec:
    """Return everything that determines the size of the replay.

    One stream has the whole episodes of all members; windows are pairs of records inside one episode.
    """
    return ReplaySpec(config.buffer, env.observation, env.action, num_envs=1, window_length=2, latent=None)


def ray_transfer_size(config: PopulationTrainConfig, spec: EnvSpec) -> TransferSize:
    """Return the bytes that a generation of engine=ray sends; allocates nothing.

    Raises:
        UserError: If the length of an episode has no limit.
    """
    replay = plan_unchecked(replay_spec(config, spec))
    return transfer_size(config.population, config.td3, spec, replay, config.buffer.capacity)
