"""What runs in a worker of a Ray cluster: a group of members plays, and learns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ....buffers import TransitionTable
from ....envs import EnvConfig
from ....workflows.population import TD3, Lesson, Members, PopulationConfig, Sizes, TD3Config
from ....workflows.population.members import Stacked
from .base import Losses
from .rollouts import Played, Rollouts

Arrays = dict[str, Any]
"""Tensors of some members as arrays, nested as in `Members.rows`: they travel without being copied."""

ACTOR = "actor"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What all workers are made of."""

    env: EnvConfig
    population: PopulationConfig
    td3: TD3Config
    seed: int


class GroupWorker:
    """Plays and teaches the members `first` to `first + count`; keeps nothing of them between two calls.

    Whatever a call needs comes with it, so that a new worker can take the place of one at any moment.

    Args:
        settings: Of all workers.
        first: Number of the first member.
        count: Members.
    """

    def __init__(self, settings: WorkerSettings, first: int, count: int) -> None:
        torch.set_num_threads(1)
        self._first, self._count = first, count
        self._rollouts = Rollouts(
            settings.env, settings.population, settings.td3.exploration_noise, settings.seed, first, count
        )
        sizes, device = Sizes.of(self._rollouts.spec, settings.td3), torch.device("cpu")
        is_padded = count == 1 < settings.population.size
        self._members = PaddedMember(sizes, device) if is_padded else Members(sizes, count, device)
        self._td3 = TD3(settings.td3)

    def play(self, actor: Arrays, generation: int) -> Played:
        """Play every member's episodes; `actor` is what `rows_to_send` names so."""
        self._put({"networks": {ACTOR: actor}})
        played = self._rollouts.play(self._members, generation, lambda: False)
        assert played is not None
        return played

    def learn(
        self, actor: Arrays, rest: Arrays, table: TransitionTable, lesson: Lesson
    ) -> tuple[Arrays, Losses]:
        """Let every member learn; return their state as `Members.rows` does, and the losses."""
        copies = self._members.count // self._count
        self._put({"networks": {ACTOR: actor}})
        self._put(rest)
        self._members.updates = rest["updates"]
        numbers = lesson.members[self._first : self._first + self._count] * copies
        losses = self._td3.learn(self._members, table, replace(lesson, members=numbers))
        return (
            as_arrays(self._members.rows(0, self._count)),
            {name: each[: self._count].tolist() for name, each in losses.items()},
        )

    def _put(self, arrays: Mapping[str, Any]) -> None:
        """Write some of the tensors of all members; the copies of one member are written alike."""
        for mine, theirs in _pairs(self._members.state_dict(), arrays):
            mine.copy_(torch.tensor(theirs).expand_as(mine) if len(theirs) == 1 else torch.tensor(theirs))


class PaddedMember(Members):
    """One member twice: torch has another kernel for a stack of one row, with other roundings.

    Two rows are computed bit for bit like any larger number of them. What the second one does is thrown away.
    """

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(sizes, 2, device)

    def act(self, actor: Stacked, observation: Tensor) -> Tensor:
        """See `Members.act`; observations of one row are those of the member."""
        rows = len(observation)
        return super().act(actor, observation.repeat(self.count // rows, 1, 1))[:rows]


def rows_to_send(members: Members, start: int, stop: int) -> tuple[Arrays, Arrays]:
    """Return what playing needs of some members, and what learning needs besides; views where they can be."""
    state = members.state_dict()
    networks = dict(state["networks"])
    actor = networks.pop(ACTOR)
    rest = {"networks": networks, "moments": state["moments"]}
    return as_arrays(actor, start, stop), {**as_arrays(rest, start, stop), "updates": members.updates}


def as_arrays(state: Mapping[str, Any], start: int = 0, stop: int | None = None) -> Arrays:
    """Return a nest of tensors as one of arrays, some rows of each."""
    return tree_map_only(Tensor, lambda tensor: tensor[start:stop].cpu().numpy(), state)


def as_tensors(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nest of arrays, which may be read-only, as one of tensors in memory of their own."""
    return tree_map_only(np.ndarray, torch.tensor, arrays)


def own_copy(played: Played) -> Played:
    """Return episodes that may lie in the object store in memory of their own."""
    episodes = [
        replace(
            episode,
            observation={key: each.copy() for key, each in episode.observation.items()},
            action=episode.action.copy(),
            reward=episode.reward.copy(),
        )
        for episode in played.episodes
    ]
    return replace(played, episodes=episodes)


def _pairs(state: Mapping[str, Any], arrays: Mapping[str, Any]) -> Iterable[tuple[Tensor, NDArray]]:
    """Yield every array with the tensor of the same name."""
    for key, value in arrays.items():
        if isinstance(value, np.ndarray):
            yield state[key], value
        elif isinstance(value, Mapping):
            yield from _pairs(state[key], value)
