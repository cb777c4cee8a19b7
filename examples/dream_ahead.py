"""Let Pong's world model dream 15 steps ahead: `python examples/dream_ahead.py [steps before]`.

The script draws the game, the dream and their difference in dream.png.
"""

import sys

import numpy as np
import torch
from gymnasium.spaces import flatdim
from PIL import Image
from torch.nn import functional as F

import reverie

STEPS = 15

agent = reverie.load("pretrained:pong", device="cpu")
env = agent.make_env()
observation, _ = env.reset(seed=0)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 80):
    observation, *_ = env.step(agent.act(observation))

action = agent.act(observation)
start, actions, truth = agent.state, [], [observation]
for _ in range(STEPS):
    actions.append(F.one_hot(torch.tensor([action]), flatdim(env.action_space)).float())
    observation, *_ = env.step(action)
    truth.append(observation)
    # The agent sees these observations. The dream does not.
    action = agent.act(observation)

model = agent.world_model
assert model.decoder is not None
noise = model.rssm.noise(reverie.Noise(torch.Generator().manual_seed(0)), STEPS, 1)
with torch.no_grad():
    states, _ = model.rssm.imagine(start, lambda step, state: actions[step], noise)
    believed = reverie.LatentState.stack(states, 1)
    dream = model.decoder.to_raw(model.decoder(believed))["image"][0].numpy()
    rewards, _ = model.predict(believed.feature)

error = np.abs(np.stack(truth).astype(int) - dream).astype(np.uint8)
rows = [np.concatenate(list(frames[::3]), axis=1) for frames in (np.stack(truth), dream, error)]
Image.fromarray(np.concatenate(rows)).save("dream.png")
print(f"dream.png: game, dream and error after 0, 3, ... {STEPS} steps; mean error {error.mean():.2f} of 255")
print(f"dreamed rewards {rewards.sum():+.2f}")
