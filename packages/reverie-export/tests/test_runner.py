"""The example that runs a file needs neither Reverie nor PyTorch."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from reverie_export import export_onnx
from reverie_export.onnx_file import METADATA
from reverie_export.step import PolicyStep

from .agents import Spaces, random_agent

RUNNER = Path(__file__).parents[3] / "examples" / "onnx_runner.py"
# Imports of these packages fail like imports of packages that are not installed.
WITHOUT = """
import runpy, sys
for name in ("torch", "reverie", "reverie_export", "heapwatch"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# This environment prints its actions and ends after 200 frames.
FRAMES = """
import gymnasium
import numpy as np

class Frames(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.frame = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        print("action", int(action))
        self.frame += 1
        sight = np.full(4, 0.1 * (-1) ** (self.frame // 20), np.float32)
        return sight, 1.0, self.frame == 200, False, {}

gymnasium.register("Frames-v0", Frames)
"""


def test_the_runner_plays_cartpole_without_reverie_and_torch(cartpole_file: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, str(RUNNER), str(cartpole_file), "CartPole-v1", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cartpole_file.parent)
    assert done.returncode == 0, done.stderr
    returns = [float(each) for each in re.findall(r"episode \d: return (\d+)", done.stdout)]
    assert len(returns) == 3 and min(returns) > 300
    assert len(RUNNER.read_text().splitlines()) <= 60


def test_the_runner_repeats_each_action_like_the_run(cartpole_file: Path, tmp_path: Path) -> None:
    model = onnx.load(cartpole_file)
    about = {each.key: each.value for each in model.metadata_props}
    about[METADATA] = json.dumps(json.loads(about[METADATA]) | {"action_repeat": 3})
    onnx.helper.set_model_props(model, about)
    onnx.save(model, tmp_path / "agent.onnx")
    (tmp_path / "frames.py").write_text(FRAMES)
    command = [sys.executable, str(RUNNER), "agent.onnx", "frames:Frames-v0", "1"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    actions = re.findall(r"action (\d)", done.stdout)
    # The episode ends after 200 frames, two frames after the last new action.
    assert len(actions) == 200 and done.stdout.endswith("episode 1: return 200\n")
    groups = [actions[start : start + 3] for start in range(0, 200, 3)]
    assert all(len(set(group)) == 1 for group in groups) and len(set(actions)) == 2


def test_a_discrete_action_is_a_number_that_environments_can_use_as_a_key(cartpole_file: Path) -> None:
    runner = runpy.run_path(str(RUNNER))["Runner"](str(cartpole_file))
    assert {0: "left", 1: "right"}[runner.act(np.zeros(4))] in ("left", "right")


def test_the_runner_feeds_dicts_of_other_dtypes_and_selects_likely_actions(tmp_path: Path) -> None:
    agent, workflow = random_agent(Spaces, "model=debug")
    export_onnx(agent, tmp_path / "agent.onnx")
    runner = runpy.run_path(str(RUNNER))["Runner"](str(tmp_path / "agent.onnx"), seed=5)
    step = PolicyStep(workflow, agent.observation_space, agent.action_space, image_size=64)
    inputs, rng = step.example(), np.random.default_rng(5)
    for index in range(4):
        observation = agent.observation_space.sample()
        shown = {
            **observation,
            "depth": observation["depth"].astype(np.float64),
            "gear": int(observation["gear"]),
        }
        inputs |= {f"observation.{key}": torch.as_tensor(value) for key, value in observation.items()}
        inputs["is_first"] = torch.tensor(index == 0)
        shape = inputs["latent_noise"].shape
        inputs["latent_noise"] = torch.from_numpy(rng.standard_exponential(shape, dtype=np.float32))
        rng.standard_normal(3, dtype=np.float32)
        inputs["action_noise"] = torch.zeros(3)
        with torch.no_grad():
            action, *state = step(inputs)
        inputs |= dict(zip(("deter", "stoch", "prev_action"), state, strict=True))
        np.testing.assert_allclose(runner.act(shown, deterministic=True), action.numpy(), rtol=0, atol=1e-4)
