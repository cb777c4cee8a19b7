"""The DeepMind Control Suite and Crafter as Gymnasium environments. Both need optional packages."""

import os
import sys
import warnings
from contextlib import suppress
from ctypes.util import find_library
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from ..utils.errors import UserError, did_you_mean, first_line, with_place
from .config import EnvConfig, Observations, Suite

_PACKAGES = {
    Suite.dmc: ("dm_control.suite", "shimmy.dm_control_compatibility"),
    Suite.crafter: ("crafter",),
}
"""Modules that each optional suite needs."""

_LIMITS = {Suite.dmc: 1000, Suite.crafter: 10_000}
"""Frames per episode. All tasks of the control suite have this limit except lqr (unlimited)."""

_RENDERERS = {"egl": "EGL", "osmesa": "OSMesa"}
"""Libraries that render without a screen, fastest first, by MUJOCO_GL value."""

_CAMERAS = {"quadruped": 2}
"""Cameras by domain, where the reference code does not use camera 0."""

# Side, in pixels, of rendered images that are not observations.
_VIDEO_SIZE = 256


def suite_registration(config: EnvConfig) -> EnvSpec:
    """Return the registration of a task of an optional suite."""
    # Gymnasium's type for entry points requires functions that accept any keyword.
    make: Any = partial(_control if config.suite is Suite.dmc else _crafter, config)
    return EnvSpec(config.label, entry_point=make, max_episode_steps=_LIMITS[config.suite])


def validate_suite(config: EnvConfig) -> None:
    """Raise `UserError` if an optional suite's packages are missing, or its task does not exist."""
    modules = [_imported(config.suite, name) for name in _PACKAGES[config.suite]]
    most = _LIMITS[config.suite]
    if (config.time_limit or 0) > most and not config.task.startswith("lqr"):
        raise UserError(
            f"env.time_limit must be at most {most} (got {config.time_limit}): the task ends then."
        )
    if config.suite is Suite.dmc and config.task not in (tasks := _tasks(modules[0])):
        raise UserError(
            f"env.task={config.task} is not one of the {len(tasks)} tasks of the DeepMind Control Suite."
            f"{did_you_mean(config.task, tasks)} Names are domain_task, e.g. env.task=walker_walk."
        )


def _imported(suite: Suite, name: str) -> Any:
    """Import a module of an optional suite."""
    is_chosen = False
    if suite is Suite.dmc and not {"DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"} & os.environ.keys():
        # dm_control chooses its renderer on import. On Linux, it would choose one that needs a screen.
        found = [value for value, library in _RENDERERS.items() if find_library(library)]
        if is_chosen := sys.platform == "linux" and bool(found):
            os.environ["MUJOCO_GL"] = found[0]
    try:
        # Shimmy enables deprecation warnings of all modules.
        with warnings.catch_warnings():
            return import_module(name)
    except ModuleNotFoundError as error:
        repair = f"pip install -c constraints.txt -e '.[{suite.value}]'"
        raise UserError(f"env={suite.value} needs the package {error.name}: {repair}.") from error
    except Exception as error:
        if is_chosen:
            # The library exists without a device. Without these variables, dm_control works without pixels.
            os.environ.pop("MUJOCO_GL")
            os.environ.pop("PYOPENGL_PLATFORM", None)
            with suppress(Exception):
                return import_module(name)
        # Without their library, renderers raise other exceptions.
        repair = "Install the missing library" + ", or unset MUJOCO_GL" * ("MUJOCO_GL" in os.environ)
        raise UserError(f"env={suite.value}: cannot import {name}: {with_place(error)}. {repair}.") from error


def _tasks(suite: Any) -> dict[str, tuple[str, str]]:
    """Return the domain and task of all control suite tasks by name, e.g. `walker_walk`."""
    return {f"{domain}_{task}": (domain, task) for domain, task in suite.ALL_TASKS}


def with_pixels(env: gymnasium.Env, config: EnvConfig) -> gymnasium.Env:
    """Add the rendered part of `env.observations`. It is rendered once per repeated action.

    Raises:
        UserError: If this machine cannot render. The caller prepends the task.
    """
    if config.suite is not Suite.dmc or config.observations is Observations.proprio:
        return env
    only = config.observations is Observations.pixels
    try:
        return gymnasium.wrappers.AddRenderObservation(env, render_only=only, render_key="image")
    except Exception as error:
        # Without its library, each renderer raises a different exception.
        repair = "Install libegl1 or libosmesa6, unset MUJOCO_GL, or set env.observations=proprio"
        raise UserError(f"cannot be rendered: {first_line(error)}. {repair}.") from error


def _control(config: EnvConfig, render_mode: str | None = None) -> gymnasium.Env:
    """Return a task of the control suite. The seed passed to `reset` determines the episode."""
    suite, shimmy = (_imported(Suite.dmc, name) for name in _PACKAGES[Suite.dmc])
    domain, task = _tasks(suite)[config.task]
    is_seen = config.observations is not Observations.proprio
    size = config.image_size if is_seen else _VIDEO_SIZE
    picture = {"height": size, "width": size, "camera_id": _CAMERAS.get(domain, 0)}
    # This seed is only used for lqr's model, which would otherwise differ between processes.
    env = suite.load(domain, task, task_kwargs={"random": 0})
    return shimmy.DmControlCompatibilityV0(env, "rgb_array" if is_seen else render_mode, picture)


def _crafter(config: EnvConfig) -> gymnasium.Env:
    """Return Crafter."""
    from .crafter import Crafter

    return Crafter(config.image_size)
