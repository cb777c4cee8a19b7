"""The interface of an algorithm."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..buffers import StoredLatent
from ..utils.timestep import EnvSpec, TimeStep


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """Actions for N environments, and the states that they were chosen in, detached."""

    action: NDArray[np.float32]
    """(N, A) one-hot, or numbers that the environment clips to [-1, 1]."""

    latent: StoredLatent


@dataclass(frozen=True, slots=True)
class UpdateOutput:
    """Results of an update; detached, on the workflow's device."""

    metrics: dict[str, Tensor]
    """0-d tensors by name."""

    deter: Tensor
    """(B, T, D) fresh recurrent states of the trained steps, for the replay."""

    stoch: Tensor
    """(B, T, S) uint8 fresh latent classes of the trained steps, for the replay."""

    finite: Tensor
    """0-d bool: whether the loss and every gradient were finite. If not, nothing learned has changed."""

    gradient_norms: Tensor
    """(P,) L2 norm of the gradient of each trained tensor, before clipping."""

    gradient_names: tuple[str, ...]


class EvalPolicy(Protocol):
    """A policy with its own state, to play with."""

    sample: bool
    """Whether it draws its actions, instead of taking the mode; without effect where it has one action."""

    def act(self, step: TimeStep) -> NDArray[np.float32]:
        """Return the actions (N, A) for N records."""
        ...


class Agent(Protocol):
    """An algorithm that can be evaluated, saved and watched, however it learns."""

    env: EnvSpec

    @property
    def device(self) -> torch.device:
        """Device of its tensors."""
        ...

    def eval_policy(self, num_envs: int, seed: int, sample: bool) -> EvalPolicy:
        """Return a policy that shares the parameters and nothing else."""
        ...

    def components(self) -> dict[str, tuple[Any, ...]]:
        """Return the objects held, by name, for the memory tracker; a slash makes one part of a sum."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state of learning: nested tensors and numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state."""
        ...
