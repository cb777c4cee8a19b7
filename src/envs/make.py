"""From a configuration to environments: the only place that knows suites by name."""

from contextlib import closing
from dataclasses import replace

from ..utils.timestep import EnvSpec
from .atari import AtariSimulators
from .backend import Simulators
from .catch import CATCH_ID
from .config import EnvConfig, Suite, Vectorization, validate_env
from .gymnasium_vector import GymnasiumSimulators
from .vector import VectorEnvironment


def make_environment(config: EnvConfig, run_seed: int, render: bool = False) -> VectorEnvironment:
    """Return the environments that `config` asks for, not yet reset.

    Args:
        config: Which environment, and how many.
        run_seed: Seed of the run; the seeds of all episodes of all environments come from it.
        render: Whether `VectorEnvironment.render` gives pictures of environment 0, where the suite draws any.

    Raises:
        UserError: If the environment is unknown, a package is missing, or the model cannot take its spaces.
    """
    validate_env(config)
    return VectorEnvironment(_simulators(config, render), run_seed, config.max_restarts)


def make_simulators(config: EnvConfig, count: int) -> Simulators:
    """Return `count` environments for a caller that says itself which episode starts when.

    Raises:
        UserError: As `make_environment`.
    """
    validate_env(config)
    return _simulators(replace(config, num_envs=count), render=False)


def spec_of(config: EnvConfig) -> EnvSpec:
    """Return what the environments of `config` deliver; one of them is started for a moment, in this process.

    Raises:
        UserError: As `make_environment`.
    """
    with closing(make_simulators(replace(config, vectorization=Vectorization.sync), 1)) as one:
        return replace(one.spec, num_envs=config.num_envs)


def _simulators(config: EnvConfig, render: bool) -> Simulators:
    if config.suite is Suite.atari:
        return AtariSimulators(config)
    if config.suite is Suite.catch:
        return GymnasiumSimulators(config, CATCH_ID, "catch")
    return GymnasiumSimulators(config, config.id, config.id, render)
