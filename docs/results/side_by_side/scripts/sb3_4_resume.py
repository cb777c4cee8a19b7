from pathlib import Path

from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env

steps = max(int(path.stem.split("_")[2]) for path in Path("checkpoints").glob("rl_model_*_steps.zip"))
save = CheckpointCallback(2_000, "checkpoints", save_replay_buffer=True)
model = DQN.load(f"checkpoints/rl_model_{steps}_steps", env=make_vec_env("CartPole-v1"))
model.load_replay_buffer(f"checkpoints/rl_model_replay_buffer_{steps}_steps")
model.learn(50_000 - model.num_timesteps, callback=save, reset_num_timesteps=False)
