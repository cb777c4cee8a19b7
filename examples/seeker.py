"""Train on your own environment, and play: `python examples/seeker.py [steps]`."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Seeker(gymnasium.Env):
    """Move to the bright square, with one lever per axis."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, size=16, render_mode=None):
        self.size, self.render_mode = size, render_mode
        picture = spaces.Box(0.0, 1.0, (64, 64, 3), np.float32)
        self.observation_space = spaces.Dict(camera=picture, place=spaces.Box(-1, 1, (2,), np.float32))
        self.action_space = spaces.MultiDiscrete([3, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.integers(self.size, size=(2, 2))
        return self._seen(), {}

    def step(self, action):
        self.place = np.clip(self.place + action - 1, 0, self.size - 1)
        reached = bool((self.place == self.goal).all())
        return self._seen(), float(reached), reached, False, {}

    def render(self):
        return (255 * self._seen()["camera"]).astype(np.uint8)

    def _seen(self):
        camera, side = np.zeros((64, 64, 3), np.float32), 64 // self.size
        for channel, (row, column) in enumerate((self.place, self.goal)):
            camera[row * side : (row + 1) * side, column * side : (column + 1) * side, channel] = 1
        return {"camera": camera, "place": np.float32(2 * self.place / (self.size - 1) - 1)}


gymnasium.register("Seeker-v0", entry_point="seeker:Seeker", max_episode_steps=50)

if __name__ == "__main__":
    import sys

    import reverie

    print(reverie.check_env("seeker:Seeker-v0", steps=200))
    small = {"device": "cpu", "model": "debug", "buffer.capacity": 2_000, "training.learning_starts": 40}
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    own = {"env.kwargs.size": 8}
    run = reverie.train(overrides=small | own, env="seeker:Seeker-v0", total_timesteps=steps)
    env = run.agent.make_env()
    observation, _ = env.reset(seed=0)
    print(f"{run.agent} moves its levers {run.agent.act(observation)}")
