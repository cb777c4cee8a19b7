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
# # Look into a dream of Pong
#
# A world model predicts the consequences of actions. Here it observes a game for a while. After that, it
# receives only the actions.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from gymnasium.spaces import flatdim
from torch.nn import functional as F

import reverie

agent = reverie.load("pretrained:pong", device="cpu")
env = agent.make_env()
model = agent.world_model
print(agent)

# %% [markdown]
# ## The game
#
# The agent plays until the ball is in flight. `agent.state` is the model's latent state at that moment. The
# frames and actions after that moment are recorded.

# %%
SEEN, DREAMED = 70, 20

observation, _ = env.reset(seed=0)
for _ in range(SEEN):
    observation, *_ = env.step(agent.act(observation))

action = agent.act(observation)
start, actions, truth, points = agent.state, [], [observation], [0.0]
for _ in range(DREAMED):
    actions.append(F.one_hot(torch.tensor([action]), flatdim(env.action_space)).float())
    observation, reward, *_ = env.step(action)
    truth.append(observation)
    points.append(float(reward))
    action = agent.act(observation)
truth = np.stack(truth)

# %% [markdown]
# ## The dream
#
# `rssm.imagine` rolls the prior forward under any policy, here the recorded actions. Each noise seed gives
# a different dream from the same moment.


# %%
@torch.no_grad()
def dream(seed):
    assert model.decoder is not None
    noise = model.rssm.noise(reverie.Noise(torch.Generator().manual_seed(seed)), DREAMED, 1)
    states, _ = model.rssm.imagine(start, lambda step, state: actions[step], noise)
    believed = reverie.LatentState.stack(states, 1)
    rewards, _ = model.predict(believed.feature)
    return model.decoder.to_raw(model.decoder(believed))["image"][0].numpy(), rewards[0].numpy()


dreams = [dream(seed) for seed in range(3)]
pictures, rewards = dreams[0]

# %% [markdown]
# ## Truth, dream, error

# %%
shown = range(0, DREAMED + 1, 5)
errors = np.abs(truth.astype(int) - pictures)
figure, axes = plt.subplots(3, len(shown), figsize=(2 * len(shown), 6))
for column, step in zip(axes.T, shown, strict=True):
    for axis, picture in zip(
        column, (truth[step], pictures[step], errors[step].astype(np.uint8)), strict=True
    ):
        axis.imshow(picture)
        axis.axis("off")
    column[0].set_title(f"step {step}")
figure.savefig("dream.png")

# %% [markdown]
# The mean error of an image hides the ball (a few of 4,096 pixels), so also look at the largest
# error. Dreams diverge at random events, such as a serve.

# %%
figure, (mean, largest) = plt.subplots(1, 2, figsize=(10, 3))
for drawn, _ in dreams:
    difference = np.abs(truth.astype(int) - drawn).reshape(DREAMED + 1, -1)
    mean.plot(difference.mean(1))
    largest.plot(difference.max(1))
mean.set_title("mean error of 255")
largest.set_title("largest error of 255")
figure.savefig("errors.png")
print("game: ", {step: point for step, point in enumerate(points) if point})
print("dream:", {step: round(float(each), 2) for step, each in enumerate(rewards) if abs(each) > 0.1})
