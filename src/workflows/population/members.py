"""The members of a population as stacked tensors: one row a member in each."""

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

NETWORKS = ("actor", "critic", "slow_actor", "slow_critic")
_TRAINED = ("actor", "critic")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the shapes of a member depend on."""

    observation: int
    """Width of the observation vector: all keys side by side, in the order of their names."""

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
    """M actors with critics, the slow copies of both and Adam's moments, and functions of all rows at once.

    Row m of every tensor is member m's; nothing else couples the members, so any rows of it are members too.

    Args:
        sizes: Of each member.
        count: Members.
        device: Where they live.
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
            self.networks[f"slow_{name}"] = _copy(self.networks[name])
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

    def estimate(self, critic: Stacked, observation: Tensor, action: Tensor) -> Tensor:
        """Return both estimates (M, B, 2) of the returns of actions (M, B, A)."""
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
        """Return the state of members `start` to `stop`, copied to the host, as `put` takes it.

        A copy of its own: what leaves for another process must not be views of all members.
        """
        return tree_map_only(Tensor, lambda tensor: tensor[start:stop].cpu().clone(), self.state_dict())

    def put(self, start: int, rows: Mapping[str, Any]) -> None:
        """Write what `rows` returned into the members from `start` on."""
        for mine, theirs in zip(self.tensors(), filter(torch.is_tensor, tree_leaves(rows)), strict=True):
            mine[start : start + len(theirs)].copy_(theirs)
        self.updates = rows["updates"]

    def take_rows(self, index: Tensor) -> None:
        """Let every member m become a copy of member `index[m]`, in all its tensors."""
        index = index.to(self.device)
        for tensor in self.tensors():
            tensor.copy_(tensor[index])

    def is_finite(self) -> Tensor:
        """Return (M,) bool: whether all numbers of each member are finite."""
        finite = torch.ones(self.count, dtype=torch.bool, device=self.device)
        for tensor in self.tensors():
            finite &= tensor.isfinite().flatten(1).all(1)
        return finite

    def take_back_nonfinite(self, before: Mapping[str, Any]) -> list[int]:
        """Let every member that has a number that is not finite be as it was; return which ones."""
        bad = (~self.is_finite()).nonzero().flatten()
        if len(bad):
            for mine, theirs in zip(
                self.tensors(), filter(torch.is_tensor, tree_leaves(before)), strict=True
            ):
                mine[bad] = theirs[bad.cpu()].to(self.device)
        return bad.tolist()

    def restore_actors(self, members: Sequence[int], before: Mapping[str, Any]) -> None:
        """Let some members act as they did, with the slow copies and moments of then; their critics stay.

        Args:
            members: Their numbers.
            before: What `rows` returned of all members.
        """
        chosen = torch.tensor(members, dtype=torch.int64)
        mine, theirs = (
            (state["networks"]["actor"], state["networks"]["slow_actor"], *state["moments"]["actor"].values())
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
            ValueError: If names, dtypes or shapes are others; nothing is changed then.
        """
        check_structure(dict(state), self.state_dict())
        self.put(0, state)


def _stack(modules: list[Any], device: torch.device) -> Stacked:
    parameters, _ = stack_module_state(modules)
    return {name: tensor.detach().to(device) for name, tensor in parameters.items()}


def _copy(stacked: Stacked) -> Stacked:
    return {name: tensor.clone() for name, tensor in stacked.items()}


def _zeros(stacked: Stacked) -> Stacked:
    return {name: torch.zeros_like(tensor) for name, tensor in stacked.items()}
