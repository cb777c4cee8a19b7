"""Stable-Baselines3's PPO on CartPole, with four environments."""

import argparse

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20_000, help="optimiser steps")
steps = parser.parse_args().steps

torch.set_num_threads(1)
env = make_vec_env("CartPole-v1", n_envs=4, seed=1)
model = PPO("MlpPolicy", env, n_steps=128, batch_size=64, n_epochs=10, device="cpu", seed=1)
# An iteration has 512 transitions in 8 batches, repeated 10 times.
iterations = -(-steps // 80)
model.learn(total_timesteps=512 * iterations, log_interval=20)
