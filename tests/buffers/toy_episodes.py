"""Whole toy episodes, and a reference replay as plain lists."""

from typing import Any

import numpy as np

from reverie.buffers import EpisodeRecords, EpisodeReplayBuffer
from reverie.utils.timestep import TimeStep

from .reference import ACTION, held_values, make_buffer


def transition_buffer(**settings: Any) -> EpisodeReplayBuffer:
    """Return a small buffer like the population's."""
    return make_buffer(**{"window_length": 2, "cross_episodes": False, "store_latents": False, **settings})


def toy_episode(length: int, is_terminal: bool = False, identity: int = 0) -> EpisodeRecords:
    """Return an episode of `length` records, numbered from `identity`."""
    numbers = identity + np.arange(length)
    return EpisodeRecords(
        observation={
            "image": ((numbers[:, None] + np.arange(12)) % 251).astype(np.uint8).reshape(-1, 2, 2, 3),
            "speed": numbers[:, None] + np.array([0.0, 0.25, 0.5]),
        },
        # The values are never 0, so that the last row reveals whether it was stored as zeros.
        action=np.eye(ACTION.size, dtype=np.float32)[numbers % ACTION.size] + 1,
        reward=np.where(np.arange(length) > 0, numbers, 0).astype(np.float32),
        is_terminal=is_terminal,
    )


def add_one_by_one(buffer: EpisodeReplayBuffer, episode: EpisodeRecords) -> None:
    """Add the records of an episode one by one to a buffer with one environment."""
    length = len(episode.reward)
    for t in range(length):
        is_last = np.array([t == length - 1])
        arrival = TimeStep(
            observation={key: values[t : t + 1] for key, values in episode.observation.items()},
            reward=episode.reward[t : t + 1],
            is_first=np.array([t == 0]),
            is_last=is_last,
            is_terminal=is_last & episode.is_terminal,
        )
        buffer.add(arrival, episode.action[t : t + 1])


class ListOfEpisodes:
    """The stored episodes, oldest first, one list per stream."""

    def __init__(self, num_envs: int, capacity: int) -> None:
        self.capacity = capacity
        self.streams: list[list[EpisodeRecords]] = [[] for _ in range(num_envs)]

    @property
    def held(self) -> list[EpisodeRecords]:
        return [episode for stream in self.streams for episode in stream]

    def add(self, env: int, episode: EpisodeRecords) -> None:
        length = len(episode.reward)
        while sum(len(held.reward) for held in self.held) + length > self.capacity:
            max(self.streams, key=lambda stream: sum(len(held.reward) for held in stream)).pop(0)
        self.streams[env].append(episode)


def assert_holds(buffer: EpisodeReplayBuffer, episodes: list[EpisodeRecords]) -> None:
    """Check each field of all stored records against the expected episodes, stream by stream."""
    expected: dict[str, list[np.ndarray]] = {}
    for episode in episodes:
        is_last = np.arange(len(episode.reward)) == len(episode.reward) - 1
        fields = {f"observation.{key}": values for key, values in episode.observation.items()} | {
            "action": np.where(is_last[:, None], 0, episode.action),
            "reward": episode.reward,
            "is_first": np.arange(len(episode.reward)) == 0,
            "is_last": is_last,
            "is_terminal": is_last & episode.is_terminal,
        }
        for name, values in fields.items():
            expected.setdefault(name, []).append(values)
    assert buffer._index.num_episodes == len(episodes)
    assert sorted(expected) == sorted(buffer.plan.fields)
    for name, parts in expected.items():
        np.testing.assert_array_equal(held_values(buffer, name).numpy(), np.concatenate(parts))
