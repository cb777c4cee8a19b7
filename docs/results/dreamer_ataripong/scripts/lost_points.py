"""Print how early the world model predicts lost points, as JSON: `lost_points.py <run> [games]`.

From latent states before a lost point, the model imagines the effects of the agent's actual actions, with
several samples of the latents. A point counts as predicted if the mean imagined reward is below -0.5.
Stretches without a point serve as controls.
"""

import json
import sys

import numpy as np
import torch
from gymnasium.spaces import Discrete

import reverie
from reverie.models.rssm import LatentState

BEFORE = (2, 3, 5, 8, 12)
DRAWS, STRETCHES = 32, 20


def imagined_reward(
    agent: reverie.Agent, state: LatentState, actions: list[int], noise: reverie.Noise
) -> float:
    """Return the mean sum of imagined rewards over samples from a state, (1, ...), with these actions."""
    model = agent.world_model
    start = LatentState(*(part.expand(DRAWS, *part.shape[1:]) for part in (state.deter, state.stoch)))
    assert isinstance(agent.action_space, Discrete)
    chosen = torch.eye(int(agent.action_space.n))[actions]
    with torch.no_grad():
        latents = model.rssm.noise(noise, len(actions), DRAWS)
        states, _ = model.rssm.imagine(start, lambda step, _: chosen[step].expand(DRAWS, -1), latents)
        return sum(float(model.predict(each.feature)[0].mean()) for each in states[1:])


def main() -> None:
    run, games = sys.argv[1], int((*sys.argv[2:], "5")[0])
    lost, quiet, lengths = {k: [] for k in BEFORE}, {k: [] for k in BEFORE}, []
    noise, generator = reverie.Noise(), np.random.default_rng(0)
    for game in range(games):
        agent = reverie.load(run, device="cpu", seed=game)
        env = agent.make_env()
        observation, _ = env.reset(seed=game)
        states, actions, rewards, is_over = [], [], [], False
        while not is_over:
            actions.append(agent.act(observation))
            states.append(agent.state)
            observation, reward, terminated, truncated, _ = env.step(actions[-1])
            rewards.append(float(reward))
            is_over = terminated or truncated
        points = np.flatnonzero(rewards)
        lengths += np.diff(points, prepend=0)[np.array(rewards)[points] < 0].tolist()
        times = [step for step in range(20, len(rewards)) if not any(rewards[step - 12 : step + 1])]
        stretches = generator.choice(times, STRETCHES, replace=False)
        for found, ends in ((lost, np.flatnonzero(np.array(rewards) < 0)), (quiet, stretches)):
            for end in ends:
                for k in BEFORE:
                    took = actions[end - k : end + 1]
                    found[k].append(imagined_reward(agent, states[end - k], took, noise) < -0.5)
    shares = {
        name: {k: round(float(np.mean(each)), 2) for k, each in found.items() if each}
        for name, found in (("lost", lost), ("no_point", quiet))
    }
    shown = {"run": run, "games": games, "points_lost": len(lengths), "their_steps": lengths}
    print(json.dumps(shown | {"foreseen_by_steps_before": shares}, indent=1))


if __name__ == "__main__":
    main()
