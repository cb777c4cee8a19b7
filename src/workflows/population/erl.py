"""Evolutionary reinforcement learning: TD3 learners that evolve between their training phases.

Khadka & Tumer 2018, "Evolution-Guided Policy Gradient in Reinforcement Learning".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...utils.errors import UserError
from ...utils.seeding import torch_generator
from ...utils.state_files import check_structure
from ...utils.timestep import EnvSpec, TimeStep
from ...utils.units import count_text
from .config import PopulationConfig, TD3Config
from .evolution import INITIAL, Origin, evolve, rank
from .members import Members, Sizes, Stacked
from .td3 import TD3, flat_observation


@dataclass(frozen=True, slots=True)
class BestPolicy:
    """Fitness and origin of the fittest policy so far."""

    fitness: float
    generation: int
    member: int


class ERLWorkflow:
    """Members with their origins, and the best policy so far. The best policy chooses the actions.

    Raises:
        UserError: If the environment has images or discrete actions.
    """

    sample = False

    def __init__(
        self, env: EnvSpec, population: PopulationConfig, td3: TD3Config, device: torch.device, seed: int
    ) -> None:
        require_vectors(env)
        self.env, self.population, self.device = env, population, device
        self.td3 = TD3(td3)
        self.members = Members(Sizes.of(env, td3), population.size, device)
        self.origins = [INITIAL] * population.size
        self.best: BestPolicy | None = None
        self.best_actor: Stacked = {
            name: tensor[:1].clone() for name, tensor in self.members.networks["actor"].items()
        }
        """Parameters of the best policy (member 0's before the first evaluation), each (1, *shape)."""

        self._seed = seed

    @property
    def num_parameters(self) -> int:
        """Total number of trained parameters of all members."""
        return self.members.num_parameters

    def update_best(self, fitness: Sequence[float], generation: int) -> bool:
        """Copy the fittest member if it beats the best policy so far. Return whether it was copied."""
        member = rank(fitness)[0]
        if math.isnan(fitness[member]) or (self.best is not None and fitness[member] <= self.best.fitness):
            return False
        self.best = BestPolicy(fitness[member], generation, member)
        for name, tensor in self.members.networks["actor"].items():
            self.best_actor[name].copy_(tensor[member : member + 1])
        return True

    def evolve(self, fitness: Sequence[float], generation: int, before: Mapping[str, Any] | None) -> None:
        """Replace this generation with the next one. Without evolution, the members stay the same.

        `before` contains the members at the time of the evaluation, if they have learned since. Elites keep
        the evaluated policies, and only children inherit the updates, because a misleading gradient would
        undo evolution.
        """
        if not self.population.evolves:
            self.origins = [Origin((member,), ("learner",)) for member in range(self.population.size)]
            return
        generator = torch_generator(self._seed, f"evolution after generation {generation}")
        actor = self.members.networks["actor"]
        following = evolve(actor, fitness, self.population, generator)
        # The first parent's critics, targets and moments fit the child's policy, so they are inherited too.
        self.members.gather_members(following.first_parent)
        elites = [member for member, origin in enumerate(following.origins) if origin.operators == ("elite",)]
        for name, tensor in following.parameters.items():
            actor[name].copy_(tensor)
        if before is not None:
            self.members.restore_actors(elites, before)
        self.origins = following.origins

    def eval_policy(self, num_envs: int, seed: int, sample: bool) -> "ERLWorkflow":
        """Return this object itself, because its policy is stateless and deterministic."""
        return self

    @torch.no_grad()
    def act(self, step: TimeStep) -> NDArray[np.float32]:
        """Return the best policy's actions (N, A) for N records."""
        seen = flat_observation(step.observation).to(self.device)
        return self.members.act(self.best_actor, seen[None])[0].cpu().numpy()

    def components(self) -> dict[str, tuple[Any, ...]]:
        """See `Agent.components`."""
        networks = {f"networks/{name}": (each,) for name, each in self.members.networks.items()}
        moments = {f"optimizers/{name}": (each,) for name, each in self.members.moments.items()}
        return networks | {"networks/best_actor": (self.best_actor,)} | moments

    def state_dict(self) -> dict[str, Any]:
        """Return the members, their lineage and the best policy, without copying tensors."""
        best = self.best
        return {
            "members": self.members.state_dict(),
            "origins": [[list(origin.parents), list(origin.operators)] for origin in self.origins],
            "best": None if best is None else [best.fitness, best.generation, best.member],
            "best_actor": self.best_actor,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a saved state of the same sizes.

        Raises:
            ValueError: If names, dtypes or shapes differ. The current state is then unchanged.
        """
        check_structure(state["best_actor"], self.best_actor)
        origins = [Origin(tuple(parents), tuple(operators)) for parents, operators in state["origins"]]
        if len(origins) != self.population.size:
            raise ValueError(
                f"found origins of {count_text(len(origins), 'member')}, expected {self.population.size}"
            )
        best = None if state["best"] is None else BestPolicy(*state["best"])
        self.members.load_state_dict(state["members"])
        self.origins, self.best = origins, best
        for name, tensor in self.best_actor.items():
            tensor.copy_(state["best_actor"][name])


def require_vectors(env: EnvSpec) -> None:
    """Raise `UserError` for images and discrete actions. TD3's networks do not support them."""
    if any(array.is_image for array in env.observation.values()):
        raise UserError(
            f"{env.name} has image observations, but workflow=population supports only vectors. "
            "Set workflow=dreamer."
        )
    if env.action.is_discrete:
        raise UserError(
            f"{env.name} has discrete actions, but workflow=population supports only continuous actions. "
            "Set workflow=dreamer."
        )
