"""Train on a batch of 1,024 games of Catch: `python examples/catch_tensors.py [steps] [games]`.

In a folder with this file, `reverie-train env=vector env.id=python/catch_tensors.CatchTensors-v0
env.num_envs=1024` finds the class, too.
"""

import sys

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import reverie

SIDE, PADDLE, CELL = 8, 2, 8
BACKGROUND, BALL, BAR = (96, 96, 96), (255, 255, 255), (80, 160, 255)


class CatchTensors(VectorEnv):
    """The game of `env=catch`, many times: catch a ball that falls for seven steps."""

    def __init__(self, num_envs=1024, device="cpu", autoreset_mode="SameStep"):
        self.num_envs, self.device = num_envs, torch.device(device)
        self.metadata = {"autoreset_mode": AutoresetMode(autoreset_mode)}
        self.single_observation_space = spaces.Box(0, 255, (SIDE * CELL, SIDE * CELL, 3), np.uint8)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.generator = torch.Generator(self.device)
        self.colours = torch.tensor([BACKGROUND, BAR, BALL], dtype=torch.uint8, device=self.device)
        # Each game has a row of three numbers: the ball's row and column, and the paddle's left column.
        self.games = torch.zeros(3, num_envs, dtype=torch.long, device=self.device)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.generator.manual_seed(seed)
        self._begin((options or {}).get("reset_mask", torch.ones_like(self.games[0], dtype=torch.bool)))
        return self._pictures(), {}

    def step(self, actions):
        row, column, paddle = self.games
        # A game that ended in the previous step only begins again.
        begins = (row == SIDE - 1) & (self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP)
        row += 1
        paddle += actions - 1
        paddle.clamp_(0, SIDE - PADDLE)
        self._begin(begins)
        ended = row == SIDE - 1
        is_caught = (paddle <= column) & (column < paddle + PADDLE)
        reward = ended * (2.0 * is_caught - 1)
        pictures, info = self._pictures(), {}
        if self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
            info["final_obs"] = pictures
            self._begin(ended.clone())
            pictures = self._pictures()
        return pictures, reward, ended, torch.zeros_like(ended), info

    def state_dict(self):
        return {"games": self.games.clone(), "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.games.copy_(state["games"])
        self.generator.set_state(state["generator"])

    def _begin(self, which):
        top, middle = torch.zeros_like(self.games[0]), torch.full_like(self.games[0], (SIDE - PADDLE) // 2)
        column = torch.randint(SIDE, which.shape, generator=self.generator, device=self.device)
        self.games.copy_(torch.where(which, torch.stack([top, column, middle]), self.games))

    def _pictures(self):
        row, column, paddle = self.games[:, :, None, None]
        across = torch.arange(SIDE, device=self.device)
        down = across[:, None]
        is_paddle = (down == SIDE - 1) & (paddle <= across) & (across < paddle + PADDLE)
        cells = torch.where((down == row) & (across == column), 2, is_paddle.long())
        # Each cell becomes a square of pixels.
        squares = self.colours[cells][:, :, None, :, None].expand(-1, -1, CELL, -1, CELL, -1)
        return squares.reshape(self.num_envs, SIDE * CELL, SIDE * CELL, 3)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 204_800
    games = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
    settings = {
        "env.num_envs": games,
        # Each stream needs a window of nine records before the first update.
        "training.learning_starts": 9 * games,
        "training.warmup_steps": 34 * games,
        # Each step of all games is followed by 32 updates.
        "training.train_ratio": 2,
        "training.log_interval": games,
        "training.checkpoint_interval": 50 * games,
        "training.video_interval": 0,
        "buffer.capacity": 50 * games,
        # Each stream has two spare chunks.
        "buffer.chunk_length": 8,
    }
    run = reverie.train("dreamer_catch", settings, env=CatchTensors, total_timesteps=steps)
    result = run.evaluate(episodes=1000, policy="mode")
    print(f"{run.agent}, mean return {result['mean']:+.3f} in 1,000 new games, saved in {run.run_dir}")
