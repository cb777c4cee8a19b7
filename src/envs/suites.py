"""The DeepMind Control Suite and Crafter, from optional packages, as Gymnasium environments."""

import os
import sys
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
"""Modules of each optional suite."""

_LIMITS = {Suite.dmc: 1000, Suite.crafter: 10_000}
"""Frames per episode. All tasks of the control suite have this limit, except lqr, which has none."""

_RENDERERS = {"egl": "EGL", "osmesa": "OSMesa"}
"""Libraries that draw without a screen, by value of MUJOCO_GL, fastest first."""

_CAMERAS = {"quadruped": 2}
"""Cameras of the reference code other than 0, by domain."""

# Pixels of rendered images that are not observations.
_VIDEO_SIZE = 256


def suite_registration(config: EnvConfig) -> EnvSpec:
    """Return the registration of a task of an optional suite."""
    # Gymnasium's type of an entry point requires any keyword.
    make: Any = partial(_control if config.suite is Suite.dmc else _crafter, config)
    return EnvSpec(config.label, entry_point=make, max_episode_steps=_LIMITS[config.suite])


def validate_suite(config: EnvConfig) -> None:
    """Raise a `UserError` if packages of an optional suite are missing, or its task does not exist."""
    modules = [_imported(config.suite, name) for name in _PACKAGES[config.suite]]
    if config.suite is Suite.dmc and config.task not in (tasks := _tasks(modules[0])):
        raise UserError(
            f"env.task={config.task} is not one of the {len(tasks)} tasks of the DeepMind Control Suite."
            f"{did_you_mean(config.task, tasks)} Names are domain_task, e.g. env.task=walker_walk."
        )


def _imported(suite: Suite, name: str) -> Any:
    """Import a module of an optional suite."""
    if suite is Suite.dmc and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        # dm_control chooses its renderer at its import. On Linux it would choose one that needs a screen.
        found = [value for value, library in _RENDERERS.items() if find_library(library)]
        if sys.platform == "linux" and found:
            os.environ.setdefault("MUJOCO_GL", found[0])
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        repair = f"pip install -c constraints.txt -e '.[{suite.value}]'"
        raise UserError(f"env={suite.value} needs the package {error.name}: {repair}.") from error
    except Exception as error:
        # Renderers raise other exceptions without their library.
        repair = f"Install it, or unset MUJOCO_GL ({os.environ.get('MUJOCO_GL', 'not set')})"
        raise UserError(f"env={suite.value}: {name} failed with {with_place(error)}. {repair}.") from error


def _tasks(suite: Any) -> dict[str, tuple[str, str]]:
    """Return domain and task of each task of the control suite by name, e.g. `walker_walk`."""
    return {f"{domain}_{task}": (domain, task) for domain, task in suite.ALL_TASKS}


def with_pixels(env: gymnasium.Env, config: EnvConfig) -> gymnasium.Env:
    """Add `env.observations` that are rendered, once for each repeated action.

    Raises:
        UserError: If this machine cannot render; the caller prepends the task.
    """
    if config.suite is not Suite.dmc or config.observations is Observations.proprio:
        return env
    only = config.observations is Observations.pixels
    try:
        return gymnasium.wrappers.AddRenderObservation(env, render_only=only, render_key="image")
    except Exception as error:
        # Each renderer raises another exception without its library.
        repair = "Install libegl1 or libosmesa6, unset MUJOCO_GL, or set env.observations=proprio"
        raise UserError(f"cannot be rendered: {first_line(error)}. {repair}.") from error


def _control(config: EnvConfig, render_mode: str | None = None) -> gymnasium.Env:
    """Return a task of the control suite. The seed of `reset` determines the episode."""
    suite, shimmy = (_imported(Suite.dmc, name) for name in _PACKAGES[Suite.dmc])
    domain, task = _tasks(suite)[config.task]
    is_seen = config.observations is not Observations.proprio
    size = config.image_size if is_seen else _VIDEO_SIZE
    picture = {"height": size, "width": size, "camera_id": _CAMERAS.get(domain, 0)}
    # This seed only builds the model of lqr, which otherwise differs between processes.
    env = suite.load(domain, task, task_kwargs={"random": 0})
    return shimmy.DmControlCompatibilityV0(env, "rgb_array" if is_seen else render_mode, picture)


def _crafter(config: EnvConfig) -> gymnasium.Env:
    """Return Crafter."""
    from .crafter import Crafter

    return Crafter(config.image_size)
