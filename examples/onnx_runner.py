"""Run an agent that `reverie-export format=onnx` has written, without Reverie and PyTorch.

pip install numpy onnxruntime "gymnasium[classic-control]"
python onnx_runner.py agent.onnx CartPole-v1 10
"""

import json
import sys

import numpy as np
import onnxruntime


class Runner:
    """An agent from an ONNX file, with its recurrent state and random numbers."""

    def __init__(self, path, seed=0):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map["reverie"])
        self.inputs = {each.name: each for each in self.session.get_inputs()}
        self.rng = np.random.default_rng(seed)
        self.state = {name: np.zeros(self.inputs[name].shape, np.float32) for name in self.about["state"]}
        self.reset()

    def reset(self):
        """Start an episode. The function ignores the state of the previous one."""
        self.is_first = np.array(True)

    def act(self, observation, deterministic=False):
        """Return the action for an observation, a scalar or an array, and update the recurrent state."""
        dtypes = self.about["observation"]
        parts = observation if isinstance(observation, dict) else dict.fromkeys(dtypes, observation)
        feed = {f"observation.{key}": np.asarray(parts[key], dtype) for key, dtype in dtypes.items()}
        for name, kind in self.about["noise"].items():
            feed[name] = getattr(self.rng, f"standard_{kind}")(self.inputs[name].shape, np.float32)
        if deterministic:
            # Equal exponential numbers select the most likely choice, and zeros the mean.
            feed["action_noise"][:] = self.about["noise"]["action_noise"] == "exponential"
        action, *state = self.session.run(None, feed | self.state | {"is_first": self.is_first})
        self.state, self.is_first = dict(zip(self.about["state"], state, strict=True)), np.array(False)
        return np.asarray(action)[()]


if __name__ == "__main__":
    import gymnasium

    path, name, *count = sys.argv[1:] if len(sys.argv) > 2 else sys.exit(__doc__)
    agent, env = Runner(path), gymnasium.make(name)
    for episode in range(int(count[0]) if count else 5):
        (observation, _), total, done = env.reset(seed=episode), 0.0, False
        agent.reset()
        while not done:
            action, frame = agent.act(observation), 0
            while not done and frame < agent.about["action_repeat"]:
                observation, reward, terminated, truncated, _ = env.step(action)
                total, done, frame = total + float(reward), terminated or truncated, frame + 1
        print(f"episode {episode + 1}: return {total:g}")
