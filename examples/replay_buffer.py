"""Use only the replay buffer, in your own Q-learning agent: `python examples/replay_buffer.py [episodes]`."""

import copy
import sys

import gymnasium
import numpy as np
import torch
from torch import nn

import reverie

env = gymnasium.make("CartPole-v1")
spec = reverie.EnvSpec("CartPole-v1", {"vector": reverie.ArraySpec((4,))}, reverie.ActionSpec(2, True))
config = reverie.ReplayConfig(capacity=20_000, cross_episodes=False)
chance = np.random.default_rng(0)
replay = reverie.ReplayBuffer(reverie.ReplaySpec.of(spec, config, window_length=2), generator=chance)
print(f"{replay.nbytes() / 1e6:.1f} MB, allocated in advance")

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
target = copy.deepcopy(network)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)


def play(epsilon: float) -> reverie.EpisodeRecords:
    """Return an episode. n actions result in n + 1 records, and the last record's action is a placeholder."""
    observation, _ = env.reset(seed=int(chance.integers(2**31)))
    seen, actions, rewards, is_over = [observation], [], [0.0], False
    terminated = False
    while not is_over:
        with torch.no_grad():
            best = int(network(torch.from_numpy(seen[-1])).argmax())
        actions.append(int(chance.integers(2)) if chance.random() < epsilon else best)
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        seen.append(observation)
        rewards.append(float(reward))
        is_over = terminated or truncated
    chosen = np.eye(2, dtype=np.float32)[[*actions, 0]]
    return reverie.EpisodeRecords(
        {"vector": np.stack(seen)}, chosen, np.array(rewards, np.float32), terminated
    )


for episode in range(int(sys.argv[1]) if len(sys.argv) > 1 else 60):
    records = play(epsilon=max(0.05, 1 - episode / 50))
    replay.add_episode(0, records)
    for _ in range(50):
        batch = replay.transitions(chance.integers(replay.num_transitions, size=64))
        with torch.no_grad():
            future = target(batch.next_observation["vector"]).amax(-1) * ~batch.is_terminal
        value = (network(batch.observation["vector"]) * batch.action).sum(-1)
        loss = nn.functional.smooth_l1_loss(value, batch.reward + 0.99 * future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    target.load_state_dict(network.state_dict())
    if episode % 10 == 9:
        print(f"episode {episode + 1}: return {sum(records.reward):.0f}, {replay.total_steps:,} records")
