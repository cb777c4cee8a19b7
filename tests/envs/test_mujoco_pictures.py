"""MuJoCo's images stay visible, independent of other environments."""

import gc
import os
from contextlib import closing

import gymnasium
import numpy as np
import pytest

from reverie.envs import EnvConfig, Suite, make_environment
from reverie.envs.registered import register_maker

from ..runs.fresh import in_a_fresh_process


def pole() -> gymnasium.Env:
    """Return a pole-balancing task with only images as observations."""
    env = gymnasium.make("InvertedPendulum-v5", render_mode="rgb_array", width=64, height=64)
    return gymnasium.wrappers.AddRenderObservation(env, render_only=True)


def brightest_pixels() -> list[int]:
    """Return the brightest pixel after three steps. Another environment is used between them."""
    os.environ["MUJOCO_GL"] = "egl"
    config = EnvConfig(suite=Suite.gymnasium, id=register_maker(pole), action_repeat=1)
    with closing(make_environment(config, run_seed=1)) as environment:
        pictures = [environment.reset().observation["image"]]
        with closing(make_environment(config, run_seed=2)) as other:
            other.reset()
            pictures.append(environment.step(np.zeros((1, 1), np.float32)).observation["image"])
        del other
        gc.collect()
        pictures.append(environment.step(np.zeros((1, 1), np.float32)).observation["image"])
    return [int(each.max()) for each in pictures]


def test_pictures_of_mujoco_outlive_other_environments() -> None:
    pytest.importorskip("mujoco.egl", exc_type=ImportError)
    assert min(in_a_fresh_process(brightest_pixels)) > 50
