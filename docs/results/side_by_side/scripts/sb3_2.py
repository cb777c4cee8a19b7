from stable_baselines3 import PPO
from tiny_env import Tiny

model = PPO("MultiInputPolicy", Tiny(size=8), n_steps=128, verbose=1)
model.learn(512)
