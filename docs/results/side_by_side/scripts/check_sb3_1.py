from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
m = PPO.load("ppo_cartpole")
print("mean,std over 20:", evaluate_policy(m, make_vec_env("CartPole-v1", seed=100), 20))
