"""Environments as callers name them: an id, a class, or a function that makes one."""

from collections.abc import Callable
from itertools import count

import gymnasium

from ..envs import Suite
from ..utils.errors import UserError

EnvLike = str | Callable[[], gymnasium.Env]
"""A Gymnasium id, `catch` or `atari`, a class, or a function that makes an environment."""

_NAMESPACE = "python"


def suite_and_id(env: EnvLike) -> tuple[Suite, str | None]:
    """Return where an environment comes from, and its Gymnasium id; what makes one is registered first.

    The id of a class or a function is `python/<its name>-v0`, the same in every process.

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
    name = "".join(c if c.isalnum() else "_" for c in getattr(env, "__name__", type(env).__name__)).strip("_")
    is_anonymous = "__name__" not in dir(env) or env.__name__ == "<lambda>"
    for number in count():  # two functions without a name must not take each other's place
        env_id = f"{_NAMESPACE}/{name}{number or ''}-v0"
        known = gymnasium.registry.get(env_id)
        if known is None or known.entry_point is env or not is_anonymous:
            break
    gymnasium.registry.pop(env_id, None)
    gymnasium.register(env_id, entry_point=env)
    return Suite.gymnasium, env_id
