"""Environments that callers pass: an id, a class, or a function that creates an environment."""

import inspect
from collections.abc import Callable

import gymnasium
from gymnasium.vector import VectorEnv

from ..envs import Suite
from ..envs.registered import register_maker, time_limit_of
from ..utils.errors import UserError

EnvLike = str | Callable[[], gymnasium.Env] | Callable[..., VectorEnv] | VectorEnv
"""A Gymnasium id, `catch`, `atari`, a class, or a function that creates an environment.

A vector environment, or a class or function of `num_envs` that creates one, is used as `env=vector`.
"""


def suite_and_id(env: EnvLike, maker_id: str | None = None) -> tuple[Suite, str | None]:
    """Return the suite and Gymnasium id of an environment. A class or function is registered first.

    The id of a class or function is `maker_id`, or by default the result of `register_maker`.

    Raises:
        UserError: If `env` is neither a string nor callable.
    """
    if isinstance(env, str):
        own_names = {suite.value: suite for suite in Suite if suite is not Suite.gymnasium}
        return (own_names[env], None) if env in own_names else (Suite.gymnasium, env)
    if isinstance(env, VectorEnv):
        # The module needs torch.
        from ..envs.native import Given

        env = Given(env)
    elif isinstance(env, gymnasium.Env) or not callable(env):
        made = ", an existing environment" if isinstance(env, gymnasium.Env) else ""
        repair = "Pass an id, a class, or a function that creates one: env=lambda: MyEnv()"
        raise UserError(f"env is of type {type(env).__name__}{made}. {repair}.")
    try:
        is_vector = "num_envs" in inspect.signature(env).parameters
    except ValueError:
        # Callables of C extensions may have no signature.
        is_vector = False
    return Suite.vector if is_vector else Suite.gymnasium, register_maker(env, maker_id)


def registered_limit(env: EnvLike) -> int | None:
    """Return the time limit with which a class or function is registered, or `None` for an id."""
    return time_limit_of(env) if callable(env) and not isinstance(env, str | VectorEnv) else None
