from stable_baselines3 import PPO

model = PPO.load("ppo_cartpole")
action, state = model.predict([0.0, 0.0, 0.0, 0.0])
