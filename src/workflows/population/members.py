"""The members of a population as stacked tensors, one row per member."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from ...utils.state_files import check_structure
from ...utils.timestep import EnvSpec
from .config import TD3Config

Stacked = dict[str, Tensor]
"""Parameters of one type of network by name, each (M, *shape) float32."""

_SAVED_NAMES = {"slow_actor": "target_actor", "slow_critic": "target_critic"}
"""Current names of networks by their names in checkpoints up to version 0.2.0."""

_TRAINED = ("actor", "critic")


class DeterministicActor(nn.Module):
    """Maps observations to actions: two hidden ReLU layers, then tanh (Fujimoto et al. 2018, appendix C)."""

    def __init__(self, observation_size: int, action_size: int, hidden_units: int) -> None:
        super().__init__()
        self.layers = _layers(observation_size, hidden_units, action_size)

    def forward(self, observation: Tensor) -> Tensor:
        """Return actions (..., A) in [-1, 1] for observations (..., O)."""
        return self.layers(observation).tanh()


class TwinCritic(nn.Module):
    """Maps observations and actions to two estimates of the return, using two separate networks."""

    def __init__(self, observation_size: int, action_size: int, hidden_units: int) -> None:
        super().__init__()
        self.first = _layers(observation_size + action_size, hidden_units, 1)
        self.second = _layers(observation_size + action_size, hidden_units, 1)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return both estimates (..., 2) for observations (..., O) and actions (..., A)."""
        both = torch.cat([observation, action], -1)
        return torch.cat([self.first(both), self.second(both)], -1)


def _layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths of a member's inputs, outputs and hidden layers. The observation concatenates all keys."""

    observation: int
    action: int
    hidden: int

    @classmethod
    def of(cls, env: EnvSpec, config: TD3Config) -> "Sizes":
        """Return the sizes for an environment that has vector observations."""
        widths = (array.shape[0] for array in env.observation.values())
        return cls(sum(widths), env.action.size, config.hidden_units)

    def actor(self) -> DeterministicActor:
        """Return one actor, initialized from the global generator."""
        return DeterministicActor(self.observation, self.action, self.hidden)

    def critic(self) -> TwinCritic:
        """Return one pair of critics, initialized from the global generator."""
        return TwinCritic(self.observation, self.action, self.hidden)


class Members:
    """`count` (M) actors with critics, target networks and Adam moments. Row m of a tensor is member m's.

    Members are independent, so any rows form a valid group. `updates` is the number of critic updates.
    """

    def __init__(self, sizes: Sizes, count: int, device: torch.device) -> None:
        self.sizes, self.count, self.device = sizes, count, device
        self.updates = 0
        self.networks: dict[str, Stacked] = {
            "actor": _stack([sizes.actor() for _ in range(count)], device),
            "critic": _stack([sizes.critic() for _ in range(count)], device),
        }
        self.moments: dict[str, dict[str, Stacked]] = {}
        for name in _TRAINED:
            trained = self.networks[name]
            self.networks[f"target_{name}"] = tree_map(torch.clone, trained)
            self.moments[name] = {each: tree_map(torch.zeros_like, trained) for each in ("first", "second")}
        # `functional_call` only uses the structure of these modules.
        with torch.device("meta"):
            self._actor, self._critic = sizes.actor(), sizes.critic()

    @property
    def num_parameters(self) -> int:
        """Total number of trained parameters of all members."""
        return sum(each.numel() for name in _TRAINED for each in self.networks[name].values())

    def act(self, actor: Stacked, observation: Tensor) -> Tensor:
        """Return actions (M, B, A) in [-1, 1] for observations (M, B, O)."""
        return vmap(lambda own, seen: functional_call(self._actor, own, (seen,)))(actor, observation)

    def q_values(self, critic: Stacked, observation: Tensor, action: Tensor) -> Tensor:
        """Return both critics' estimates (M, B, 2) of the returns of actions (M, B, A)."""
        each = vmap(lambda own, seen, done: functional_call(self._critic, own, (seen, done)))
        return each(critic, observation, action)

    def tensors(self) -> list[Tensor]:
        """Return all stacked tensors in the order of `state_dict`."""
        return tree_leaves((self.networks, self.moments))

    def rows(self, start: int, stop: int) -> dict[str, Any]:
        """Return a copy of the state of members `start` to `stop` on the host, for `load_rows`."""
        return tree_map_only(Tensor, lambda tensor: tensor[start:stop].cpu().clone(), self.state_dict())

    def load_rows(self, start: int, rows: Mapping[str, Any]) -> None:
        """Load a result of `rows` into consecutive members, starting with `start`."""
        for mine, theirs in self._pairs(rows):
            mine[start : start + len(theirs)].copy_(theirs)
        self.updates = rows["updates"]

    def gather_members(self, index: Tensor) -> None:
        """Replace each member m with a copy of member `index[m]` in all tensors."""
        index = index.to(self.device)
        for tensor in self.tensors():
            tensor.copy_(tensor[index])

    def revert_nonfinite(self, before: Mapping[str, Any]) -> list[int]:
        """Restore all members with non-finite values from `before`. Return their indices."""
        is_bad = torch.zeros(self.count, dtype=torch.bool, device=self.device)
        for tensor in self.tensors():
            is_bad |= ~tensor.isfinite().flatten(1).all(1)
        bad = is_bad.nonzero().flatten()
        if len(bad):
            for mine, theirs in self._pairs(before):
                mine[bad] = theirs[bad.cpu()].to(self.device)
        return bad.tolist()

    def restore_actors(self, members: Sequence[int], before: Mapping[str, Any]) -> None:
        """Restore actors, target actors and moments from `before`, a result of `rows` for all members."""
        chosen = torch.tensor(members, dtype=torch.int64)

        def of_actors(state: Mapping[str, Any]) -> list[Tensor]:
            networks = state["networks"]
            return tree_leaves((networks["actor"], networks["target_actor"], state["moments"]["actor"]))

        for tensor, old in zip(of_actors(self.state_dict()), of_actors(before), strict=True):
            tensor[chosen] = old[chosen].to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of updates and all tensors, without copying them."""
        return {"networks": self.networks, "moments": self.moments, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a saved state of the same sizes.

        Raises:
            ValueError: If names, dtypes or shapes differ. The current state is then unchanged.
        """
        networks = {_SAVED_NAMES.get(name, name): stacked for name, stacked in state["networks"].items()}
        state = {**state, "networks": networks}
        check_structure(state, self.state_dict())
        self.load_rows(0, state)

    def _pairs(self, rows: Mapping[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each stacked tensor with its counterpart in a result of `rows`."""
        return zip(self.tensors(), filter(torch.is_tensor, tree_leaves(rows)), strict=True)


def _stack(modules: list[Any], device: torch.device) -> Stacked:
    parameters, _ = stack_module_state(modules)
    return {name: tensor.detach().to(device) for name, tensor in parameters.items()}
