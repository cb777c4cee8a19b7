"""Environments that callers pass: an id, a class, or a function that creates an environment."""

from collections.abc import Callable

import gymnasium

from ..envs import Suite
from ..envs.registered import register_maker, time_limit_of
from ..utils.errors import UserError

EnvLike = str | Callable[[], gymnasium.Env]
"""A Gymnasium id, `catch`, `atari`, a class, or a function that creates an environment."""


def suite_and_id(env: EnvLike, maker_id: str | None = None) -> tuple[Suite, str | None]:
    """Return the suite and Gymnasium id of an environment. A class or function is registered first.

    The id of a class or function is `maker_id`, or by default the result of `register_maker`.

    Raises:
        UserError: If `env` is neither a string nor callable.
    """
    if isinstance(env, str):
        own_names = {suite.value: suite for suite in Suite if suite is not Suite.gymnasium}
        return (own_names[env], None) if env in own_names else (Suite.gymnasium, env)
    if isinstance(env, gymnasium.Env) or not callable(env):
        made = ", an environment that already exists" if isinstance(env, gymnasium.Env) else ""
        repair = "Pass an id, a class, or a function that creates one: env=lambda: MyEnv()"
        raise UserError(f"env is of type {type(env).__name__}{made}. {repair}.")
    return Suite.gymnasium, register_maker(env, maker_id)


def registered_limit(env: EnvLike) -> int | None:
    """Return the time limit with which a class or function is registered, or `None` for an id."""
    return None if isinstance(env, str) else time_limit_of(env)
