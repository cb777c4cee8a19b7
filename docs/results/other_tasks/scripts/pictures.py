"""Environments of MuJoCo, seen as pictures alone: start in this folder."""

import gymnasium
import numpy as np


def pendulum():
    """A pole to balance, seen as a picture alone, by a camera that stands still in every instance."""
    camera = {"trackbodyid": 0, "distance": 2.04, "lookat": np.zeros(3)}
    env = gymnasium.make(
        "InvertedPendulum-v5", render_mode="rgb_array", width=64, height=64, default_camera_config=camera
    )
    return gymnasium.wrappers.AddRenderObservation(env, render_only=True)
