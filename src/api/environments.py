"""Environments as callers name them: an id, a class, or a function that makes one."""

import re
from collections.abc import Callable
from typing import Any

import gymnasium

from ..envs import Suite
from ..utils.errors import UserError

EnvLike = str | Callable[[], gymnasium.Env]
"""A Gymnasium id, `catch` or `atari`, a class, or a function that makes an environment."""


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
    name = re.sub(r"\W", "", getattr(env, "__name__", "lambda"))
    env_id, number = f"python/{name}-v0", 1
    # Of two classes of one name the later counts, as in Python; but a lambda has no name of its own.
    while (
        name == "lambda"
        and env_id in gymnasium.registry
        and gymnasium.registry[env_id].entry_point is not env
    ):
        number += 1
        env_id = f"python/{name}{number}-v0"
    gymnasium.registry.pop(env_id, None)
    make: Any = env  # a maker that takes no arguments, as a registration does not ask for any
    gymnasium.register(env_id, entry_point=make)
    return Suite.gymnasium, env_id
