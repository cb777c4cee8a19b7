"""Interfaces that an algorithm implements."""

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
    """Actions for N environments, and the detached model states in which they were chosen."""

    action: NDArray[np.float32] | Tensor
    """Actions (N, A): one-hot, or continuous numbers that the environment clips to [-1, 1]. A tensor on the
    workflow's device if the observations are tensors."""

    latent: StoredLatent


@dataclass(frozen=True, slots=True)
class UpdateOutput:
    """Detached results of an update, on the workflow's device."""

    metrics: dict[str, Tensor]
    """0-d tensors by name."""

    deter: Tensor
    """New recurrent states (B, T, D) of the trained steps, to be stored in the replay buffer."""

    stoch: Tensor
    """New uint8 latent classes (B, T, S) of the trained steps, to be stored in the replay buffer."""

    finite: Tensor
    """Whether the loss and all gradients were finite, 0-d bool. If not, no parameter was changed."""

    gradient_norms: Tensor
    """L2 norm (P,) of each trained tensor's gradient before clipping."""

    gradient_names: tuple[str, ...]

    window_losses: Tensor | None = None
    """Loss of the world model in each window (B,), for samplers that need it."""


class EvalPolicy(Protocol):
    """A policy for evaluation, independent of the training state."""

    sample: bool
    """Whether to sample actions instead of using the policy's mode. Deterministic policies ignore this."""

    def act(self, step: TimeStep) -> NDArray[np.float32]:
        """Return the actions (N, A) for N records."""
        ...


class Agent(Protocol):
    """An algorithm that can be evaluated, saved and monitored."""

    env: EnvSpec

    @property
    def device(self) -> torch.device:
        """Device of the agent's tensors."""
        ...

    def eval_policy(self, num_envs: int, seed: int, sample: bool) -> EvalPolicy:
        """Return a policy that shares only its parameters with this agent."""
        ...

    def components(self) -> dict[str, tuple[Any, ...]]:
        """Return the agent's objects by component name, for the memory tracker. `a/b` is added to `a`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the complete training state as nested tensors and numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a result of `state_dict`."""
        ...
