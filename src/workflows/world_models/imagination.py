"""Rolling the controller out inside the world model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...models import Actor, LatentState, Noise
from .world_model import WorldModel


@dataclass(frozen=True, slots=True)
class Imagined:
    """N imagined trajectories of H transitions; nothing here has a gradient.

    Rewards and continuations belong to the state they are predicted from (arrival convention).
    """

    feature: Tensor
    """(N, H + 1, F) the start and the states after it."""

    action: Tensor
    """(N, H, A) action taken in state i, leading to state i + 1."""

    reward: Tensor
    """(N, H + 1) predicted reward on arriving at state i, raw units."""

    discount: Tensor
    """(N, H + 1) predicted probability that the episode goes on after state i, times gamma."""


@torch.no_grad()
def imagine(
    world_model: WorldModel, actor: Actor, start: LatentState, horizon: int, noise: Noise
) -> Imagined:
    """Imagine `horizon` transitions from every start state (N, ...) under the actor's sampled actions."""
    action_size = actor.out.out_features
    source = noise.exponential if actor.is_discrete else noise.normal
    draws = source(horizon, start.deter.shape[0], action_size)

    def policy(step: int, state: LatentState) -> Tensor:
        return actor(state.feature).sample(draws[step])

    states, actions = world_model.rssm.imagine(start.detach(), policy, horizon, noise)
    feature = states.feature
    return Imagined(
        feature=feature,
        action=actions,
        reward=world_model.reward.mean(world_model.reward(feature)),
        discount=world_model.continuation(feature).sigmoid(),
    )
