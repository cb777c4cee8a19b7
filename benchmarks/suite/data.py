"""Random records and batches. The cost of the networks does not depend on their input."""

from dataclasses import replace

import numpy as np
import torch

from reverie.buffers import SampledPositions, SequenceBatch, StoredLatent
from reverie.config.dreamer import DreamerTrainConfig
from reverie.utils.timestep import EnvSpec, TimeStep

_EPISODE = 1000
"""Number of records per episode in a filled replay. Pong's episodes have 800 or more."""


def random_batch(config: DreamerTrainConfig, env: EnvSpec, seed: int = 0) -> SequenceBatch:
    """Return a batch of random pixels, actions and rewards in the replay's format, without episode ends."""
    generator = torch.Generator().manual_seed(seed)
    size = config.training.batch_size
    shape = (size, config.training.sequence_length + 1)
    model = config.model
    no_flag = torch.zeros(shape, dtype=torch.bool)
    actions = torch.randint(env.action.size, shape, generator=generator)
    context = StoredLatent(
        torch.zeros(size, model.deter, dtype=torch.float16), torch.zeros(size, model.stoch, dtype=torch.uint8)
    )
    return SequenceBatch(
        observation={
            key: torch.randint(256, (*shape, *spec.shape), dtype=torch.uint8, generator=generator)
            for key, spec in env.observation.items()
        },
        action=torch.nn.functional.one_hot(actions, env.action.size).float(),
        reward=torch.randn(shape, generator=generator),
        is_first=no_flag,
        is_last=no_flag.clone(),
        is_terminal=no_flag.clone(),
        context=context if config.buffer.store_latents else None,
        positions=SampledPositions(np.zeros(size, np.int64), np.zeros(size, np.int64)),
    )


def random_arrival(env: EnvSpec, generator: np.random.Generator) -> TimeStep:
    """Return a step in mid-episode with random pixels and rewards."""
    flags = np.zeros(env.num_envs, np.bool_)
    return TimeStep(
        observation={
            key: generator.integers(256, size=(env.num_envs, *spec.shape), dtype=np.uint8)
            for key, spec in env.observation.items()
        },
        reward=generator.standard_normal(env.num_envs, dtype=np.float32),
        is_first=flags,
        is_last=flags,
        is_terminal=flags,
    )


def flagged(arrival: TimeStep, step: int) -> TimeStep:
    """Return a step with the flags for its position in episodes of constant length."""
    if 0 < step % _EPISODE < _EPISODE - 1:
        return arrival
    flags = np.ones_like(arrival.is_first)
    return replace(arrival, is_first=flags) if step % _EPISODE == 0 else replace(arrival, is_last=flags)


def random_actions(env: EnvSpec, generator: np.random.Generator) -> np.ndarray:
    """Return one-hot actions (N, A) float32."""
    choice = generator.integers(env.action.size, size=env.num_envs)
    return np.eye(env.action.size, dtype=np.float32)[choice]
