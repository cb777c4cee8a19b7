"""Environments as callers name them: an id, a class, or a function that makes one."""

from collections.abc import Callable

import gymnasium

from ..envs import Suite
from ..envs.registered import register_maker, time_limit_of
from ..utils.errors import UserError

EnvLike = str | Callable[[], gymnasium.Env]
"""A Gymnasium id, `catch` or `atari`, a class, or a function that makes an environment."""


def suite_and_id(env: EnvLike, maker_id: str | None = None) -> tuple[Suite, str | None]:
    """Return where an environment comes from, and its Gymnasium id; what makes one is registered first.

    The id of a class or a function is `maker_id`, or that of `register_maker`.

    Raises:
        UserError: If it is neither a text nor something that can be called.
    """
    if isinstance(env, str):
        own_names = {suite.value: suite for suite in Suite if suite is not Suite.gymnasium}
        return (own_names[env], None) if env in own_names else (Suite.gymnasium, env)
    if isinstance(env, gymnasium.Env) or not callable(env):
        made = ", an environment that is already made" if isinstance(env, gymnasium.Env) else ""
        repair = "Give an id, a class, or a function that makes one: env=lambda: MyEnv()"
        raise UserError(f"env is of type {type(env).__name__}{made}. {repair}.")
    return Suite.gymnasium, register_maker(env, maker_id)


def registered_limit(env: EnvLike) -> int | None:
    """Return the time limit with which a given class or function is registered, None for an id."""
    return None if isinstance(env, str) else time_limit_of(env)
