"""Make environments from a configuration; the only module that knows suites by name."""

from contextlib import closing
from dataclasses import replace

from ..utils.timestep import EnvSpec
from .atari import AtariBackend
from .backend import EnvBackend
from .catch import CATCH_ID
from .config import EnvConfig, Suite, Vectorization, validate_env
from .gymnasium_vector import GymnasiumBackend
from .vector import VectorEnvironment


def make_environment(config: EnvConfig, run_seed: int, render: bool = False) -> VectorEnvironment:
    """Return the environments of `config`, not yet reset.

    Args:
        config: Which environment, and how many.
        run_seed: Seed of the run; the seeds of all episodes of all environments come from it.
        render: Whether `VectorEnvironment.render` gives pictures of environment 0, if the suite renders any.

    Raises:
        UserError: If the environment is unknown, a package is missing, or the model cannot take its spaces.
    """
    validate_env(config)
    return VectorEnvironment(_backend(config, render), run_seed, config.max_restarts)


def make_backend(config: EnvConfig, count: int) -> EnvBackend:
    """Return `count` environments for a caller that starts episodes itself.

    Raises:
        UserError: As `make_environment`.
    """
    validate_env(config)
    return _backend(replace(config, num_envs=count), render=False)


def spec_of(config: EnvConfig) -> EnvSpec:
    """Return the spec of the environments of `config`; starts one of them for a moment, in this process.

    Raises:
        UserError: As `make_environment`.
    """
    with closing(make_backend(replace(config, vectorization=Vectorization.sync), 1)) as one:
        return replace(one.spec, num_envs=config.num_envs)


def _backend(config: EnvConfig, render: bool) -> EnvBackend:
    if config.suite is Suite.atari:
        return AtariBackend(config)
    if config.suite is Suite.catch:
        return GymnasiumBackend(config, CATCH_ID, "catch")
    return GymnasiumBackend(config, config.id, config.id, render)
