"""MuJoCo environments with only images as observations. Start in this folder."""

import gymnasium
import numpy as np


def pendulum():
    """Return a pole-balancing task with only images, from a camera that is fixed in all instances."""
    camera = {"trackbodyid": 0, "distance": 2.04, "lookat": np.zeros(3)}
    env = gymnasium.make(
        "InvertedPendulum-v5", render_mode="rgb_array", width=64, height=64, default_camera_config=camera
    )
    return gymnasium.wrappers.AddRenderObservation(env, render_only=True)
