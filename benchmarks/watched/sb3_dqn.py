"""Stable-Baselines3's DQN on CartPole. The replay has room for more steps than the run collects."""

import argparse

import gymnasium as gym
import torch
from stable_baselines3 import DQN

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20_000, help="optimiser steps")
parser.add_argument("--stack", type=int, default=64, help="frames in an observation")
steps, stack = vars(parser.parse_args()).values()

torch.set_num_threads(1)
env = gym.make("CartPole-v1")
env = gym.wrappers.FlattenObservation(gym.wrappers.FrameStackObservation(env, stack))
model = DQN(
    "MlpPolicy",
    env,
    buffer_size=2 * steps + 10_000,
    learning_starts=1_000,
    batch_size=64,
    train_freq=1,
    gradient_steps=1,
    target_update_interval=500,
    device="cpu",
    seed=1,
)
model.learn(total_timesteps=1_000 + steps, log_interval=100)
