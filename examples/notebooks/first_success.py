# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # First success: Catch
#
# A ball falls down a 64 x 64 pixel screen, and a paddle must catch it. The episode ends with a reward of 1 or
# -1. The agent sees only the pixels.

# %%
import matplotlib.pyplot as plt
import numpy as np

import reverie

print(reverie.check_env("catch", steps=100))

# %% [markdown]
# ## Train
#
# `reverie.train` is the Python equivalent of `reverie-train`. The whole preset takes about ten CPU minutes.
# These settings make only a few updates, to demonstrate each part. For a full training run, use
# `reverie.train("dreamer_catch", device="cpu")`.

# %%
short = {"training.learning_starts": 80, "training.train_ratio": 8, "training.log_interval": 16}
run = reverie.train("dreamer_catch", short, total_timesteps=128, device="cpu")

# %% [markdown]
# Each run has a folder. `metrics.jsonl` contains its metrics, with one line per report.
# `train/loss/decoder/image` is the squared error of the world model's reconstructions.

# %%
tag = "train/loss/decoder/image"
points = [(line["step"], line[tag]) for line in run.metrics() if tag in line]
plt.plot(*zip(*points, strict=True), "o-")
plt.xlabel("agent steps")
plt.ylabel("reconstruction error")
plt.show()

# %% [markdown]
# ## Play
#
# You could let `run.agent` play now. The package includes the networks of a full run, so this notebook uses
# them instead, and compares them with random actions.


# %%
def play(agent, env, seed):
    observation, _ = env.reset(seed=seed)
    agent.reset()
    frames, ended, reward = [observation], False, 0.0
    while not ended:
        observation, reward, ended, _, _ = env.step(agent.act(observation))
        frames.append(observation)
    return float(reward), frames


agent = reverie.load("pretrained:catch", device="cpu")
env = agent.make_env()
played = [play(agent, env, seed) for seed in range(10)]
print(f"{agent}: mean return {np.mean([reward for reward, _ in played]):+.2f} of 1")

# %%
env.action_space.seed(0)
chance = []
for seed in range(10):
    env.reset(seed=seed)
    ended, reward = False, 0.0
    while not ended:
        _, reward, ended, _, _ = env.step(env.action_space.sample())
    chance.append(float(reward))
print(f"random actions: mean return {np.mean(chance):+.2f}")

# %%
reward, frames = played[0]
plt.figure(figsize=(12, 2))
plt.imshow(np.concatenate(frames, axis=1))
plt.axis("off")
plt.title(f"one episode, reward {reward:+g}")
plt.show()
