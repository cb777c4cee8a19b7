import gymnasium
import numpy as np
from gymnasium import spaces


class Tiny(gymnasium.Env):
    """Go to the bright square. Picture and place; `size` squares a side."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, size=16, render_mode=None):
        self.size, self.render_mode = size, render_mode
        picture = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.observation_space = spaces.Dict(picture=picture, place=spaces.Box(-1, 1, (2,), np.float32))
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.integers(self.size, size=(2, 2))
        self.time = 0
        return self._seen(), {}

    def step(self, action):
        move = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)][int(action)])
        self.place, self.time = np.clip(self.place + move, 0, self.size - 1), self.time + 1
        reached = bool((self.place == self.goal).all())
        return self._seen(), float(reached), reached, self.time >= 50, {}

    def render(self):
        return self._seen()["picture"]

    def _seen(self):
        picture, side = np.zeros((64, 64, 3), np.uint8), 64 // self.size
        for channel, (row, column) in enumerate((self.place, self.goal)):
            picture[row * side : (row + 1) * side, column * side : (column + 1) * side, channel] = 255
        return {"picture": picture, "place": np.float32(2 * self.place / (self.size - 1) - 1)}
