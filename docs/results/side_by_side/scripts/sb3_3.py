import gymnasium
from stable_baselines3 import PPO

model = PPO.load("ppo_cartpole")
observation, info = gymnasium.make("CartPole-v1").reset()
action, state = model.predict(observation)
print(action)
