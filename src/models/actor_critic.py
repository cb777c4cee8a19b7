"""The networks of TD3: a deterministic actor and two critics, multilayer perceptrons over vectors."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class DeterministicActor(nn.Module):
    """Observation to action: two hidden layers of ReLU, then tanh (Fujimoto et al. 2018, appendix C)."""

    def __init__(self, observation_size: int, action_size: int, hidden_units: int) -> None:
        super().__init__()
        self.layers = _layers(observation_size, hidden_units, action_size)

    def forward(self, observation: Float[Tensor, "... observation"]) -> Float[Tensor, "... action"]:
        """Return actions in [-1, 1]."""
        return self.layers(observation).tanh()


class TwinCritic(nn.Module):
    """Observation and action to two estimates of the return, by two separate networks."""

    def __init__(self, observation_size: int, action_size: int, hidden_units: int) -> None:
        super().__init__()
        self.first = _layers(observation_size + action_size, hidden_units, 1)
        self.second = _layers(observation_size + action_size, hidden_units, 1)

    def forward(
        self, observation: Float[Tensor, "... observation"], action: Float[Tensor, "... action"]
    ) -> Float[Tensor, "... two"]:
        """Return both estimates."""
        both = torch.cat([observation, action], -1)
        return torch.cat([self.first(both), self.second(both)], -1)


def _layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )
