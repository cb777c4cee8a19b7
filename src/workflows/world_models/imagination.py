"""Rolling the controller out inside the world model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...models import Actor, LatentState, Noise, Policy
from .world_model import WorldModel


@dataclass(frozen=True, slots=True)
class Imagined:
    """N imagined trajectories of H transitions; nothing here but the policy has a gradient.

    Time comes first: the heads read whole steps, and all but the last step are one piece of memory. Rewards
    and continuations belong to the state they are predicted from (arrival convention).
    """

    feature: Tensor
    """(H + 1, N, F) the start and the states after it."""

    action: Tensor
    """(H, N, A) action taken in state i, leading to state i + 1."""

    policy: Policy
    """(H, N, ...) what the actions were drawn from; its gradient flows into the actor alone."""

    reward: Tensor
    """(H + 1, N) predicted reward on arriving at state i, raw units."""

    discount: Tensor
    """(H + 1, N) predicted probability that the episode goes on after state i, times gamma."""


@torch.no_grad()
def imagine(
    world_model: WorldModel, actor: Actor, start: LatentState, horizon: int, noise: Noise
) -> Imagined:
    """Imagine `horizon` transitions from every start state (N, ...) under the actor's sampled actions."""
    action_size = actor.out.out_features
    draws = actor.noise(noise, horizon, start.deter.shape[0], action_size)
    features: list[Tensor] = []
    policies: list[Any] = []

    def act(step: int, state: LatentState) -> Tensor:
        features.append(state.feature)
        with torch.enable_grad():  # the actor learns from the very policies that it acted by
            policies.append(actor(features[-1]))
        return policies[-1].sample(draws[step])

    states, actions = world_model.rssm.imagine(
        start.detach(), act, horizon, noise, is_onehot=actor.is_discrete
    )
    feature = torch.stack([*features, states[-1].feature])
    with torch.enable_grad():
        stacked = type(policies[0]).stack(policies)
    reward, discount = world_model.predict(feature)
    return Imagined(
        feature=feature, action=torch.stack(actions), policy=stacked, reward=reward, discount=discount
    )
