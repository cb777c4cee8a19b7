from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import CheckpointCallback

save = CheckpointCallback(2_000, "checkpoints", save_replay_buffer=True)
model = DQN("MlpPolicy", "CartPole-v1", verbose=1)
model.learn(50_000, callback=save)
