"""Roll the controller out inside the world model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...models import Actor, LatentState, Noise, Policy
from .world_model import WorldModel


@dataclass(frozen=True, slots=True)
class ImaginedTrajectory:
    """N imagined trajectories of H transitions; nothing here but the policy has a gradient.

    Time comes first: the heads read whole steps, and all but the last step are contiguous in memory. Rewards
    and continuations belong to the state they are predicted from (arrival convention).
    """

    feature: Tensor
    """(H + 1, N, F) of the start and of the states after it."""

    action: Tensor
    """(H, N, A) action taken in state i, leading to state i + 1."""

    policy: Policy
    """(H, N, ...) distributions of the actions; the gradient flows into the actor alone."""

    reward: Tensor
    """(H + 1, N) predicted reward on arriving at state i, raw units."""

    discount: Tensor
    """(H + 1, N) predicted probability that the episode continues after state i, times gamma."""


@torch.no_grad()
def imagine(
    world_model: WorldModel, actor: Actor, start: LatentState, horizon: int, noise: Noise
) -> ImaginedTrajectory:
    """Imagine `horizon` transitions from every start state (N, ...) under the actor's sampled actions."""
    action_size = actor.out.out_features
    action_noise = actor.noise(noise, horizon, start.deter.shape[0], action_size)
    features: list[Tensor] = []
    policies: list[Any] = []

    def act(step: int, state: LatentState) -> Tensor:
        features.append(state.feature)
        with torch.enable_grad():  # the actor learns from these very distributions
            policies.append(actor(features[-1]))
        return policies[-1].sample(action_noise[step])

    states, actions = world_model.rssm.imagine(
        start.detach(), act, horizon, noise, is_onehot=actor.is_discrete
    )
    feature = torch.stack([*features, states[-1].feature])
    with torch.enable_grad():
        stacked = type(policies[0]).stack(policies)
    reward, discount = world_model.predict(feature)
    return ImaginedTrajectory(
        feature=feature, action=torch.stack(actions), policy=stacked, reward=reward, discount=discount
    )
