"""Actor and critic. Both learn in imagination, and the critic also learns from replayed states."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...buffers import SequenceBatch
from ...models import (
    Actor,
    LatentState,
    ModelConfig,
    Noise,
    Policy,
    Reinforce,
    ReturnNormalizer,
    TwoHotHead,
    converted_weights,
    lambda_return,
)
from ...utils.components import make_part
from ...utils.ranks import ALONE, Ranks
from ...utils.timestep import ActionSpec
from .config import ControllerConfig
from .world_model import WorldModel


@dataclass(frozen=True, slots=True)
class ImaginedTrajectory:
    """N imagined trajectories of H transitions. Only the policy has gradients.

    Time is the first axis, because the heads process whole steps. Rewards follow the arrival convention.
    """

    feature: Tensor
    """Features (H + 1, N, F) of the start states and the H states after them, in the dtype of products."""

    action: Tensor
    """Action (H, N, A) chosen in state i. It leads to state i + 1."""

    policy: Policy
    """Action distributions (H, N, ...). Gradients only flow into the actor."""

    reward: Tensor
    """Predicted reward (H + 1, N) on arriving at state i, in raw units."""

    discount: Tensor
    """Predicted probability (H + 1, N) that the episode continues after state i, times gamma."""


@torch.no_grad()
def imagine(
    world_model: WorldModel, actor: Actor, start: LatentState, horizon: int, noise: Noise
) -> ImaginedTrajectory:
    """Imagine `horizon` transitions from every start state (N, ...) under the actor's sampled actions."""
    action_noise = actor.noise(noise, horizon, start.deter.shape[0], actor.out.out_features, axis=1)
    features: list[Tensor] = []

    def act(step: int, state: LatentState) -> Tensor:
        feature, action = actor.choose(state.deter, state.stoch, action_noise[step])
        features.append(feature)
        return action

    rssm = world_model.rssm
    latent_noise = rssm.noise(noise, horizon, start.deter.shape[0], axis=1)
    with converted_weights(actor, rssm.prior):
        states, actions = rssm.imagine(start.detach(), act, latent_noise, is_onehot=actor.action.is_onehot)
    feature = torch.stack([*features, states[-1].feature.to(features[0].dtype)])
    # A second forward pass over all steps is cheaper than H separate backward passes.
    with torch.enable_grad():
        policy = actor(feature[:-1])
    reward, discount = world_model.predict(feature)
    return ImaginedTrajectory(feature, torch.stack(actions), policy, reward, discount)


class Controller(nn.Module):
    """Actor, return normalizer, critic (for bootstraps and baselines), and a slow critic to regularize it."""

    def __init__(
        self,
        action: ActionSpec,
        feature_size: int,
        model: ModelConfig,
        config: ControllerConfig,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__()
        self.config, self.ranks = config, ranks
        self.actor = Actor(feature_size, action, config.actor_unimix, model)
        critic = model.value_head, feature_size, model.critic_layers, model
        self.critic: TwoHotHead = make_part("model.value_head", *critic)
        self.slow_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_loss: Reinforce = make_part("controller.actor_loss", config.actor_loss)
        self.normalizer = ReturnNormalizer(config.return_rate, config.return_low, config.return_high)

    def losses(
        self,
        imagined: ImaginedTrajectory,
        replayed: LatentState,
        steps: SequenceBatch,
        entropy_scale: float | Tensor,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the losses and metrics, and update the return normalizer.

        Args:
            imagined: Trajectories from every replayed state, in (batch, time) order.
            replayed: The replayed states, (B, T), which receive the gradient of `replay_value`.
            steps: The steps that led to the replayed states.
            entropy_scale: Weight of the entropy in `policy`.

        Returns:
            Unscaled losses `policy` and `value`, (B * T, H), and `replay_value`, (B, T - 1); 0-d metrics.
        """
        logits = self.critic(imagined.feature)
        value = self.critic.mean(logits.detach())
        reward, discount, value = imagined.reward.t(), imagined.discount.t(), value.t()
        returns = lambda_return(reward, discount, value, self.config.return_lambda)
        weight = discount.cumprod(1)[:, :-1]
        self.normalizer.update(self.ranks.gather(returns))
        advantage = (returns - value[:, :-1]) / self.normalizer.scale()
        entropy = imagined.policy.entropy().t()
        log_prob = imagined.policy.log_prob(imagined.action).t()
        losses = {
            "policy": weight * self.actor_loss(log_prob, entropy, advantage, entropy_scale),
            "value": weight * self._critic_loss(logits[:-1], imagined.feature[:-1], returns.t()).t(),
            "replay_value": self._replay_value_loss(returns[:, 0], replayed, steps),
        }
        metrics = {
            "policy_entropy": entropy.detach().mean(),
            "return_scale": self.normalizer.scale(),
            "return_mean": returns.mean(),
            "value_mean": value.mean(),
            "advantage_std": advantage.std(),
            "imagined_reward_mean": imagined.reward.mean(),
        }
        return losses, metrics

    def scales(self) -> dict[str, float]:
        """Return the weights of losses in the sum, by name. All other losses have weight 1."""
        return {"replay_value": self.config.replay_value_scale}

    @torch.no_grad()
    def update_slow_critic(self, finite: Tensor) -> None:
        """Move the slow critic's parameters towards the fast critic's if the 0-d `finite` is true."""
        rate = torch.where(finite, 1.0 - self.config.slow_critic_decay, 0.0)
        for slow, fast in zip(self.slow_critic.parameters(), self.critic.parameters(), strict=True):
            slow.lerp_(fast, rate)

    def _critic_loss(self, logits: Tensor, feature: Tensor, target: Tensor) -> Tensor:
        with torch.no_grad():
            slow_value = self.slow_critic.mean(self.slow_critic(feature))
        return self.critic.loss(logits, target, slow_value, self.config.slow_critic_scale)

    def _replay_value_loss(
        self, imagined_return: Tensor, replayed: LatentState, steps: SequenceBatch
    ) -> Tensor:
        """Return the critic's loss on replayed states. Returns use real rewards and imagined bootstraps."""
        boot = imagined_return.unflatten(0, steps.reward.shape)
        discount = self.config.discount * (1.0 - steps.is_terminal.float())
        lambda_ = self.config.return_lambda * (1.0 - steps.is_last.float())
        target = lambda_return(steps.reward, discount, boot, lambda_)
        feature = replayed.feature[:, :-1]
        loss = self._critic_loss(self.critic(feature), feature, target)
        # The step after an episode's last record belongs to another episode, so it has no target.
        return (1.0 - steps.is_last[:, :-1].float()) * loss
