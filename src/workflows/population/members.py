"""The members of a population as stacked tensors, one row per member."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.utils._pytree import tree_leaves, tree_map_only

from ...models import DeterministicActor, TwinCritic
from ...utils.state_files import check_structure
from ...utils.timestep import EnvSpec
from .config import TD3Config

Stacked = dict[str, Tensor]
"""Parameters of one kind of network by name, (M, *shape) float32."""

NETWORKS = ("actor", "critic", "target_actor", "target_critic")
_SAVED_NAMES = {"slow_actor": "target_actor", "slow_critic": "target_critic"}
"""Of networks in checkpoints up to version 0.2.0."""

_TRAINED = ("actor", "critic")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers that determine the shapes of a member."""

    observation: int
    """Width of the observation vector: all keys concatenated, in the order of their names."""

    action: int
    hidden: int

    @classmethod
    def of(cls, env: EnvSpec, config: TD3Config) -> "Sizes":
        """Return the sizes for an environment whose observations are vectors."""
        widths = (array.shape[0] for array in env.observation.values())
        return cls(sum(widths), env.action.size, config.hidden_units)

    def actor(self) -> DeterministicActor:
        """Return one actor, initialised from the global generator."""
        return DeterministicActor(self.observation, self.action, self.hidden)

    def critic(self) -> TwinCritic:
        """Return one pair of critics, likewise."""
        return TwinCritic(self.observation, self.action, self.hidden)


class Members:
    """M actors with critics, their target networks and Adam's moments, and functions of all rows at once.

    Row m of every tensor is member m's. Nothing couples the members, so any rows are a group of members.

    Args:
        sizes: Sizes of each member.
        count: Number of members.
        device: Device of their tensors.
    """

    def __init__(self, sizes: Sizes, count: int, device: torch.device) -> None:
        self.sizes, self.count, self.device = sizes, count, device
        self.updates = 0
        """Updates of the critics so far."""

        self.networks: dict[str, Stacked] = {
            "actor": _stack([sizes.actor() for _ in range(count)], device),
            "critic": _stack([sizes.critic() for _ in range(count)], device),
        }
        for name in _TRAINED:
            self.networks[f"target_{name}"] = _copy(self.networks[name])
        self.moments: dict[str, dict[str, Stacked]] = {
            name: {moment: _zeros(self.networks[name]) for moment in ("first", "second")} for name in _TRAINED
        }
        with torch.device("meta"):  # only their structure is used
            self._actor, self._critic = sizes.actor(), sizes.critic()

    @property
    def num_parameters(self) -> int:
        """Trained parameters of all members."""
        return sum(each.numel() for name in _TRAINED for each in self.networks[name].values())

    def act(self, actor: Stacked, observation: Tensor) -> Tensor:
        """Return actions (M, B, A) in [-1, 1] for observations (M, B, O)."""
        return vmap(lambda own, seen: functional_call(self._actor, own, (seen,)))(actor, observation)

    def q_values(self, critic: Stacked, observation: Tensor, action: Tensor) -> Tensor:
        """Return both critics' estimates (M, B, 2) of the returns of actions (M, B, A)."""
        return vmap(lambda own, seen, done: functional_call(self._critic, own, (seen, done)))(
            critic, observation, action
        )

    def tensors(self) -> Iterator[Tensor]:
        """Yield every stacked tensor, parameters first."""
        for stacked in self.networks.values():
            yield from stacked.values()
        for pair in self.moments.values():
            for stacked in pair.values():
                yield from stacked.values()

    def nbytes(self) -> int:
        """Return the bytes of all stacked tensors."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def rows(self, start: int, stop: int) -> dict[str, Any]:
        """Return the state of members `start` to `stop`, copied to the host, for `load_rows`.

        It is a copy, because views would send the tensors of all members to another process.
        """
        return tree_map_only(Tensor, lambda tensor: tensor[start:stop].cpu().clone(), self.state_dict())

    def load_rows(self, start: int, rows: Mapping[str, Any]) -> None:
        """Load a result of `rows` into the members from `start` on."""
        for mine, theirs in zip(self.tensors(), filter(torch.is_tensor, tree_leaves(rows)), strict=True):
            mine[start : start + len(theirs)].copy_(theirs)
        self.updates = rows["updates"]

    def gather_members(self, index: Tensor) -> None:
        """Replace every member m by a copy of member `index[m]`, in all tensors."""
        index = index.to(self.device)
        for tensor in self.tensors():
            tensor.copy_(tensor[index])

    def is_finite(self) -> Tensor:
        """Return (M,) bool: whether all numbers of each member are finite."""
        finite = torch.ones(self.count, dtype=torch.bool, device=self.device)
        for tensor in self.tensors():
            finite &= tensor.isfinite().flatten(1).all(1)
        return finite

    def revert_nonfinite(self, before: Mapping[str, Any]) -> list[int]:
        """Restore every member with a non-finite number from `before`; return their numbers."""
        bad = (~self.is_finite()).nonzero().flatten()
        if len(bad):
            for mine, theirs in zip(
                self.tensors(), filter(torch.is_tensor, tree_leaves(before)), strict=True
            ):
                mine[bad] = theirs[bad.cpu()].to(self.device)
        return bad.tolist()

    def restore_actors(self, members: Sequence[int], before: Mapping[str, Any]) -> None:
        """Restore the actors of some members, with target actors and moments; their critics stay.

        Args:
            members: Numbers of the members.
            before: A result of `rows` for all members.
        """
        chosen = torch.tensor(members, dtype=torch.int64)
        mine, theirs = (
            (
                state["networks"]["actor"],
                state["networks"]["target_actor"],
                *state["moments"]["actor"].values(),
            )
            for state in (self.state_dict(), before)
        )
        for stacked, old in zip(mine, theirs, strict=True):
            for name, tensor in stacked.items():
                tensor[chosen] = old[name][chosen].to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the live tensors and the count of updates."""
        return {"networks": self.networks, "moments": self.moments, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a state of the same sizes.

        Raises:
            ValueError: If names, dtypes or shapes differ; nothing is changed then.
        """
        state = _with_present_names(state)
        check_structure(state, self.state_dict())
        self.load_rows(0, state)


def _with_present_names(state: Mapping[str, Any]) -> dict[str, Any]:
    networks = {_SAVED_NAMES.get(name, name): stacked for name, stacked in state["networks"].items()}
    return {**state, "networks": networks}


def _stack(modules: list[Any], device: torch.device) -> Stacked:
    parameters, _ = stack_module_state(modules)
    return {name: tensor.detach().to(device) for name, tensor in parameters.items()}


def _copy(stacked: Stacked) -> Stacked:
    return {name: tensor.clone() for name, tensor in stacked.items()}


def _zeros(stacked: Stacked) -> Stacked:
    return {name: torch.zeros_like(tensor) for name, tensor in stacked.items()}
