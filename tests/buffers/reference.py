"""A slow reference implementation of the replay buffer, and a toy world that feeds both buffers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.buffers import (
    LATENT_FIELDS,
    EpisodeReplayBuffer,
    LatentSpec,
    ReplayConfig,
    ReplaySpec,
    StoredLatent,
)
from reverie.buffers.storage import Arena
from reverie.utils.timestep import ActionSpec, ArraySpec, TimeStep

OBSERVATION = {
    "image": ArraySpec((2, 2, 3), np.dtype(np.uint8)),
    "speed": ArraySpec((3,), np.dtype(np.float64)),
}
ACTION = ActionSpec(size=4, is_discrete=True)
LATENT = LatentSpec(deter_size=2, num_latents=3)
MAX_ENVS = 4
OUTCOMES = ("go on", "terminate", "truncate", "abandon")


def make_buffer(
    *,
    num_envs: int = 1,
    window_length: int = 4,
    directory: Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    **settings: Any,
) -> EpisodeReplayBuffer:
    """Return a small buffer of toy records."""
    config = ReplayConfig(**{"capacity": 40, "chunk_length": 4, **settings})
    spec = ReplaySpec(config, OBSERVATION, ACTION, num_envs, window_length, LATENT)
    return EpisodeReplayBuffer(
        spec, generator=np.random.default_rng(seed), device=device, directory=directory
    )


@dataclass
class Record:
    """One record, as plain values."""

    index: int
    observation: dict[str, np.ndarray]
    action: np.ndarray
    reward: float
    is_first: bool
    is_last: bool
    is_terminal: bool
    deter: np.ndarray
    stoch: np.ndarray


@dataclass
class ToyWorld:
    """Environments with unique records, in which the reward depends only on the previous action."""

    num_envs: int
    step: int = 0
    begins: list[bool] = field(default_factory=lambda: [True] * MAX_ENVS)
    previous: list[np.ndarray] = field(default_factory=lambda: [np.zeros(ACTION.size)] * MAX_ENVS)

    def advance(self, outcomes: list[str]) -> tuple[TimeStep, np.ndarray, StoredLatent]:
        """Return one record per environment: the step, the action and the latent."""
        is_first = np.array(
            [begins or how == "abandon" for begins, how in zip(self.begins, outcomes, strict=False)]
        )
        is_terminal = np.array([how == "terminate" for how in outcomes])
        is_last = is_terminal | np.array([how == "truncate" for how in outcomes])
        identity = np.array([self.step * self.num_envs + env for env in range(self.num_envs)])
        choice = identity * 7 % ACTION.size
        reward = [
            0.0 if first else reward_of(previous)
            for first, previous in zip(is_first, self.previous, strict=False)
        ]
        action = np.eye(ACTION.size, dtype=np.float32)[choice]
        arrival = TimeStep(
            observation={
                "image": ((identity[:, None] + np.arange(12)) % 251).astype(np.uint8).reshape(-1, 2, 2, 3),
                "speed": identity[:, None] + np.array([0.0, 0.25, 0.5]),
            },
            reward=np.array(reward, np.float32),
            is_first=is_first,
            is_last=is_last,
            is_terminal=is_terminal,
        )
        latent = StoredLatent(
            deter=torch.from_numpy(identity[:, None] % 64 + np.array([0.0, 0.5])).float(),
            stoch=torch.from_numpy((identity[:, None] + np.arange(3)) % 256).to(torch.uint8),
        )
        self.step += 1
        self.begins = is_last.tolist()
        self.previous = list(action)
        return arrival, action, latent


def reward_of(action: np.ndarray) -> float:
    """Return the toy's reward for an action: 1 to 4, so that 0 means no reward."""
    return float(np.argmax(action)) + 1.0


class ReferenceReplay:
    """The contract of `EpisodeReplayBuffer`, implemented with lists of records."""

    def __init__(
        self, num_envs: int, capacity: int, window_length: int, cross_episodes: bool, latent_every: int = 1
    ) -> None:
        self.capacity, self.window_length, self.cross_episodes = capacity, window_length, cross_episodes
        self.latent_every = latent_every
        self.episodes: list[list[list[Record]]] = [[] for _ in range(num_envs)]
        self.step = 0

    @property
    def total_steps(self) -> int:
        return sum(len(self.stream(env)) for env in range(len(self.episodes)))

    @property
    def num_episodes(self) -> int:
        return sum(bool(episode) for episodes in self.episodes for episode in episodes)

    def stream(self, env: int) -> list[Record]:
        return [record for episode in self.episodes[env] for record in episode]

    def add(self, arrival: TimeStep, action: np.ndarray, latent: StoredLatent) -> None:
        self._make_room()
        for env, episodes in enumerate(self.episodes):
            is_last = bool(arrival.is_last[env])
            if arrival.is_first[env]:
                episodes.append([])
            episodes[-1].append(
                Record(
                    index=self.step,
                    observation={key: value[env].copy() for key, value in arrival.observation.items()},
                    action=np.zeros(ACTION.size) if is_last else action[env].copy(),
                    reward=float(arrival.reward[env]),
                    is_first=bool(arrival.is_first[env]),
                    is_last=is_last,
                    is_terminal=bool(arrival.is_terminal[env]),
                    deter=latent.deter[env].numpy().copy(),
                    stoch=latent.stoch[env].numpy().copy(),
                )
            )
        self.step += 1

    def _make_room(self) -> None:
        while self.total_steps + len(self.episodes) > self.capacity:
            episodes = max(self.episodes, key=lambda episodes: sum(map(len, episodes)))
            # The newest episode of an environment is complete if its last record ends it. Older ones always
            # are.
            if len(episodes) > 1 or episodes[0][-1].is_last:
                del episodes[0]
            else:
                del episodes[0][0]

    def starts(self) -> set[tuple[int, int]]:
        """Return all (environment, stream index) pairs at which a window may begin."""
        found = set()
        for env, episodes in enumerate(self.episodes):
            held = [episode for episode in episodes if episode]
            reached = [[*before[-1:], *episode] for before, episode in zip([[], *held], held, strict=False)]
            inside = reached if self.window_length > 2 else held
            for run in [self.stream(env)] if self.cross_episodes else inside:
                first = run[: max(0, len(run) - self.window_length + 1)]
                found |= {(env, record.index) for record in first if record.index % self.latent_every == 0}
        return found

    def window(self, env: int, start: int) -> list[Record]:
        stream = self.stream(env)
        first = start - stream[0].index
        return stream[first : first + self.window_length]

    def write_back(self, env: np.ndarray, start: np.ndarray, deter: Tensor, stoch: Tensor) -> None:
        for row in range(len(env)):
            held = {record.index: record for record in self.stream(env[row])}
            for column in range(1, self.window_length):
                if record := held.get(start[row] + column):
                    record.deter = deter[row, column - 1].numpy().copy()
                    record.stoch = stoch[row, column - 1].numpy().copy()


def held_values(buffer: EpisodeReplayBuffer, name: str) -> Tensor:
    """Return a field of all stored records, environment after environment, oldest first."""
    rows, _ = buffer._index.in_order()
    store = buffer._store
    if name in LATENT_FIELDS:
        assert buffer._latents is not None
        store, every = buffer._latents, buffer.config.latent_every
        rows = rows[rows % every == 0] // every
    values = store.empty(name, (len(rows),))
    store.read(store.to_index_tensor(rows), {name: values})
    return values


def rows_of(buffer: EpisodeReplayBuffer) -> dict[str, Tensor]:
    """Return all rows of each field of an uncompressed buffer."""
    assert isinstance(buffer._store, Arena)
    return buffer._store._tensors | (buffer._latents._tensors if buffer._latents else {})


def fill(
    buffer: EpisodeReplayBuffer, num_envs: int, steps: int, seed: int = 0, episode_length: float = 8
) -> ToyWorld:
    """Add toy records with random episode ends. Return the world for continuation."""
    world = ToyWorld(num_envs)
    advance(buffer, world, steps, np.random.default_rng(seed), episode_length)
    return world


def advance(
    buffer: EpisodeReplayBuffer,
    world: ToyWorld,
    steps: int,
    chance: np.random.Generator,
    episode_length: float = 8,
) -> None:
    """Add more records of a world."""
    rest = 1 / episode_length / 3
    for _ in range(steps):
        outcomes = chance.choice(OUTCOMES, size=world.num_envs, p=[1 - 3 * rest, rest, rest, rest])
        buffer.add(*world.advance(outcomes.tolist()))
