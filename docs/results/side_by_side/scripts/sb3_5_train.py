from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

for seed in (1, 2, 3):
    env = make_vec_env("CartPole-v1", monitor_dir=f"logs/{seed}")
    PPO("MlpPolicy", env, seed=seed).learn(10_000)
