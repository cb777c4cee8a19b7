"""The worker of a Ray cluster: plays and trains a group of members."""

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
from ....workflows.population import TD3, Members, PopulationConfig, Sizes, TD3Config, TrainPhase
from ....workflows.population.members import Stacked
from .base import Losses
from .rollouts import RolloutResult, Rollouts

Arrays = dict[str, Any]
"""Tensors of some members as arrays, nested as in `Members.rows`; Ray sends arrays without copying them."""

ACTOR = "actor"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings that all workers share."""

    env: EnvConfig
    population: PopulationConfig
    td3: TD3Config
    seed: int


class GroupWorker:
    """Plays and trains the members `first` to `first + count`; keeps no state between two calls.

    Every call brings all that it needs, so that a new worker can replace this one at any moment.

    Args:
        settings: Settings of all workers.
        first: Number of the first member.
        count: Number of members.
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

    def play(self, actor: Arrays, generation: int) -> RolloutResult:
        """Play every member's episodes; `actor` is the first result of `rows_to_send`."""
        self._load({"networks": {ACTOR: actor}})
        result = self._rollouts.play(self._members, generation, lambda: False)
        assert result is not None
        return result

    def learn(
        self, actor: Arrays, rest: Arrays, table: TransitionTable, phase: TrainPhase
    ) -> tuple[Arrays, Losses]:
        """Let every member learn; return their state as `Members.rows` does, and the losses."""
        copies = self._members.count // self._count
        self._load({"networks": {ACTOR: actor}})
        self._load(rest)
        self._members.updates = rest["updates"]
        numbers = phase.members[self._first : self._first + self._count] * copies
        losses = self._td3.learn(self._members, table, replace(phase, members=numbers))
        return (
            as_arrays(self._members.rows(0, self._count)),
            {name: each[: self._count].tolist() for name, each in losses.items()},
        )

    def _load(self, arrays: Mapping[str, Any]) -> None:
        """Write some of the tensors of all members; a padded member's copies get the same values."""
        for mine, theirs in _pairs(self._members.state_dict(), arrays):
            mine.copy_(torch.tensor(theirs).expand_as(mine) if len(theirs) == 1 else torch.tensor(theirs))


class PaddedMember(Members):
    """One member twice, because torch has another kernel for a stack of one row, with other roundings.

    Two rows are computed bit for bit like any larger number of them. The second row is discarded.
    """

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__(sizes, 2, device)

    def act(self, actor: Stacked, observation: Tensor) -> Tensor:
        """See `Members.act`; observations of one row are those of the member."""
        rows = len(observation)
        return super().act(actor, observation.repeat(self.count // rows, 1, 1))[:rows]


def rows_to_send(members: Members, start: int, stop: int) -> tuple[Arrays, Arrays]:
    """Return the actors of some members, for playing, and the rest, for learning; views where possible."""
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


def own_copy(result: RolloutResult) -> RolloutResult:
    """Copy a result whose episodes may be views of the object store."""
    episodes = [
        replace(
            episode,
            observation={key: each.copy() for key, each in episode.observation.items()},
            action=episode.action.copy(),
            reward=episode.reward.copy(),
        )
        for episode in result.episodes
    ]
    return replace(result, episodes=episodes)


def _pairs(state: Mapping[str, Any], arrays: Mapping[str, Any]) -> Iterable[tuple[Tensor, NDArray]]:
    """Yield every array with the tensor of the same name."""
    for key, value in arrays.items():
        if isinstance(value, np.ndarray):
            yield state[key], value
        elif isinstance(value, Mapping):
            yield from _pairs(state[key], value)
