"""What the orchestrator asks of any algorithm."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..buffers import SequenceBatch, StoredLatent
from ..utils.timestep import Arrival, EnvSpec


@dataclass(frozen=True, slots=True)
class Collected:
    """What the policy did with N arrivals."""

    action: NDArray[np.float32]
    """(N, A) one-hot, or numbers of which the environment clips what exceeds [-1, 1]."""

    latent: StoredLatent
    """State of each environment after its arrival, detached."""


@dataclass(frozen=True, slots=True)
class Updated:
    """What an update leaves behind; detached, on the workflow's device."""

    metrics: dict[str, Tensor]
    """0-d tensors by name."""

    deter: Tensor
    """(B, T, D) fresh recurrent states of the trained steps, for the replay."""

    stoch: Tensor
    """(B, T, S) uint8 fresh latent classes of the trained steps, for the replay."""

    finite: Tensor
    """0-d bool: whether the loss and every gradient were finite. If not, the update was not applied: nothing
    that is learned has changed, and the latents are not worth keeping."""

    gradient_norms: Tensor
    """(P,) L2 norm of the gradient of each trained tensor, before clipping."""

    gradient_names: tuple[str, ...]
    """The P names to it."""


class Player(Protocol):
    """A policy with a memory of its own, for evaluation beside training."""

    def act(self, arrival: Arrival) -> NDArray[np.float32]:
        """Return the actions (N, A) for N arrivals."""
        ...


class Learner(Protocol):
    """What plays for evaluation, and is saved and watched; whatever way it learns."""

    env: EnvSpec
    """What it plays."""

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        ...

    def player(self, num_envs: int, seed: int, sample: bool) -> Player:
        """Return a policy that shares the parameters and nothing else."""
        ...

    def components(self) -> dict[str, tuple[Any, ...]]:
        """Return what is held, by name, for the memory tracker; a slash makes it part of a sum."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that learning goes on from: tensors, numbers, and nests of them."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        ...


class Workflow(Learner, Protocol):
    """An algorithm that acts and learns step by step. It knows no environment and no loop."""

    @property
    def num_parameters(self) -> int:
        """Trained parameters."""
        ...

    def collect_step(self, arrival: Arrival) -> Collected:
        """Choose actions during training."""
        ...

    def update(self, batch: SequenceBatch) -> Updated:
        """Learn from one batch; what is not finite is not learned."""
        ...

    def update_world_model(self, batch: SequenceBatch) -> Updated:
        """Learn from one batch during the warm-up, when only the world model learns."""
        ...

    def report(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return animations (T, H, W, 3) uint8 that show what the model believes, by name."""
        ...
