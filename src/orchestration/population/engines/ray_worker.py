"""The worker of a Ray cluster: plays and trains a group of members."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ....buffers import TransitionTable
from ....workflows.population import TD3, Members, Sizes, Stacked, TrainPhase
from .rollouts import EngineSettings, Losses, RolloutResult, Rollouts

Arrays = dict[str, Any]
"""Tensors of some members as arrays, nested as in `Members.state_dict`; Ray sends arrays without copying."""


class GroupWorker:
    """Plays and trains the members `first` to `first + count`.

    Keeps no state between two calls: a new worker can replace this one at any moment.
    """

    def __init__(self, settings: EngineSettings, first: int, count: int) -> None:
        torch.set_num_threads(1)
        self._first, self._count = first, count
        self._rollouts = Rollouts(settings, first, count)
        sizes, device = Sizes.of(self._rollouts.spec, settings.td3), torch.device("cpu")
        is_padded = count == 1 < settings.population.size
        self._members = PaddedMember(sizes, 2, device) if is_padded else Members(sizes, count, device)
        self._td3 = TD3(settings.td3)

    def play(self, actor: Arrays, generation: int) -> RolloutResult:
        """Play every member's episodes; `actor` is the first result of `rows_to_send`."""
        _copy(actor, self._members.networks["actor"])
        result = self._rollouts.play(self._members, generation, lambda: False)
        assert result is not None
        return result

    def learn(
        self, actor: Arrays, rest: Arrays, table: TransitionTable, phase: TrainPhase
    ) -> tuple[Arrays, Losses]:
        """Let every member learn; return their state as `Members.rows` does, and the losses."""
        members = self._members
        _copy({"actor": actor, **rest["networks"]}, members.networks)
        _copy(rest["moments"], members.moments)
        members.updates = rest["updates"]
        numbers = phase.members[self._first : self._first + self._count]
        copies = members.count // self._count
        losses = self._td3.learn(members, table, replace(phase, members=numbers * copies))
        of_group = {name: each[: self._count].tolist() for name, each in losses.items()}
        return _as_arrays(members.state_dict(), 0, self._count), of_group


class PaddedMember(Members):
    """One member twice: torch's kernel for a stack of one row rounds otherwise than that for two or more."""

    def act(self, actor: Stacked, observation: Tensor) -> Tensor:
        """See `Members.act`; observations of one row are those of the member."""
        rows = len(observation)
        return super().act(actor, observation.repeat(self.count // rows, 1, 1))[:rows]


def rows_to_send(members: Members, start: int, stop: int) -> tuple[Arrays, Arrays]:
    """Return the actors of some members, for playing, and the rest, for learning; views where possible."""
    state = _as_arrays(members.state_dict(), start, stop)
    return state["networks"].pop("actor"), state


def _as_arrays(state: dict[str, Any], start: int, stop: int) -> Arrays:
    return tree_map_only(Tensor, lambda tensor: tensor[start:stop].cpu().numpy(), state)


def _copy(arrays: Arrays, tensors: Mapping[str, Any]) -> None:
    """Copy a nest of arrays, which may be read-only; one row of an array fills both of a padded member."""
    for array, tensor in zip(tree_leaves(arrays), tree_leaves(tensors), strict=True):
        tensor.copy_(torch.tensor(array))
