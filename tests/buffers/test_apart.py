"""Environments that step separately fill the same streams as environments that step together."""

import numpy as np
import pytest

from reverie.buffers import StoredLatent
from reverie.utils.timestep import TimeStep

from .reference import OUTCOMES, ToyWorld, make_buffer


@pytest.mark.parametrize("cross_episodes", [False, True])
def test_streams_that_are_filled_apart_equal_those_filled_together(cross_episodes: bool) -> None:
    together, apart = (make_buffer(num_envs=3, capacity=200, cross_episodes=cross_episodes) for _ in range(2))
    world, draw = ToyWorld(3), np.random.default_rng(0)
    steps = [world.advance(draw.choice(OUTCOMES, 3, p=[0.7, 0.1, 0.1, 0.1]).tolist()) for _ in range(60)]
    for step in steps:
        together.add(*step)
    # One environment is far ahead of the others.
    for envs in (np.array([1]), np.array([2, 0])):
        for arrival, action, latent in steps:
            seen = {key: values[envs] for key, values in arrival.observation.items()}
            flags = (arrival.is_first[envs], arrival.is_last[envs], arrival.is_terminal[envs])
            own = StoredLatent(latent.deter[envs], latent.stoch[envs])
            apart.add(TimeStep(seen, arrival.reward[envs], *flags), action[envs], own, envs)
        # This must also work while two streams are empty.
        assert list(apart.episodes())
    assert apart.content_hash() == together.content_hash()
    assert apart.num_windows == together.num_windows > 0
