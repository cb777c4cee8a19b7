from glob import glob

import gymnasium as gym
import torch
from cleanrl.dqn import QNetwork, make_env

envs = gym.vector.SyncVectorEnv([make_env("CartPole-v1", 0, 0, False, "play")])
model = QNetwork(envs)
model.load_state_dict(torch.load(glob("runs/*/dqn.cleanrl_model")[0]))
observation, info = envs.reset()
action = model(torch.Tensor(observation)).argmax(1).item()
print(action)
