"""The recurrent state-space model: a block-diagonal GRU with categorical latents.

Shapes: B batch, T time, D deter, S latents, C classes, U hidden, A action width, G blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from .config import ModelConfig
from .distributions import Noise, sample_onehot, straight_through, unimix_probs
from .layers import MLP, BlockLinear, Linear, RMSNorm, truncated_normal_
from .state import LatentState


@dataclass(frozen=True, slots=True)
class Observed:
    """What a scan over T observed steps gives."""

    posterior: LatentState
    """States after seeing each observation, (B, T, ...)."""

    posterior_logits: Float[Tensor, "batch time stoch classes"]
    prior_logits: Float[Tensor, "batch time stoch classes"]


class BlockGRU(nn.Module):
    """One recurrent step: D numbers in G blocks that share the latent sample and the action.

    In the plain form every block reads concat[own part of deter, x_deter, x_stoch, x_action]. The part that
    all blocks share is one dense map (3U -> D) of the same parameters; its action share does not depend on
    the recurrence and is computed for a whole window at once (`action_input`).

    Reference: `RSSM._core` in `dreamerv3/rssm.py` of danijar/dreamerv3 at e3f0224.
    """

    def __init__(self, action_size: int, config: ModelConfig) -> None:
        super().__init__()
        deter, hidden, self.blocks = config.deter, config.hidden, config.blocks
        self.width = deter // self.blocks
        self.deter_in = MLP(deter, hidden, 1)
        self.stoch_in = MLP(config.stoch * config.classes, hidden, 1)
        self.action_in = MLP(action_size, hidden, 1)
        self.mix_weight = nn.Parameter(torch.empty(self.blocks, self.width + 3 * hidden, self.width))
        self.mix_bias = nn.Parameter(torch.zeros(deter))
        self.mix_norm = RMSNorm(deter)
        self.gates = BlockLinear(deter, 3 * deter, self.blocks)
        truncated_normal_(self.mix_weight, self.blocks * (self.width + 3 * hidden))

    def split_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mixing weights of own deter, of x_deter and x_stoch, and of x_action.

        Their shapes are (G, D/G, D/G), (2U, D) and (U, D).
        """
        own, shared = self.mix_weight.split([self.width, self.mix_weight.shape[1] - self.width], dim=1)
        dense = shared.transpose(0, 1).flatten(1)
        hidden = dense.shape[0] // 3
        return own, dense[: 2 * hidden], dense[2 * hidden :]

    def action_input(
        self, action: Float[Tensor, "*batch action"], weight: Tensor
    ) -> Float[Tensor, "*batch deter"]:
        """Return the action's contribution to the mixing layer, its bias included."""
        action = action / action.detach().abs().clamp(min=1.0)
        return F.linear(self.action_in(action), weight.t(), self.mix_bias)

    def forward(
        self,
        deter: Float[Tensor, "batch deter"],
        stoch: Float[Tensor, "batch flat"],
        action_input: Float[Tensor, "batch deter"],
        own: Float[Tensor, "blocks width width"],
        dense: Float[Tensor, "twohidden deter"],
    ) -> Float[Tensor, "batch deter"]:
        """Return the next recurrent state; the last three arguments come from the two methods above."""
        shared = torch.cat([self.deter_in(deter), self.stoch_in(stoch)], -1)
        blocks = deter.unflatten(-1, (self.blocks, self.width)).transpose(0, 1)
        mixed = torch.bmm(blocks, own).transpose(0, 1).flatten(1) + torch.mm(shared, dense) + action_input
        gates = self.gates(F.silu(self.mix_norm(mixed)))
        # Each block's outputs are (reset, candidate, update) inside the block.
        reset, candidate, update = gates.unflatten(-1, (self.blocks, 3, self.width)).unbind(-2)
        reset, update = reset.sigmoid(), (update - 1.0).sigmoid()
        candidate = (reset * candidate).tanh()
        update, candidate = update.flatten(-2).float(), candidate.flatten(-2).float()
        return update * candidate + (1.0 - update) * deter


class RSSM(nn.Module):
    """Recurrent state-space model.

    Args:
        action_size: Width A of the action vectors.
        token_size: Width of the encoder's tokens.
        config: Sizes.
    """

    def __init__(self, action_size: int, token_size: int, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        logits = config.stoch * config.classes
        self.core = BlockGRU(action_size, config)
        self.posterior_in = Linear(config.deter + token_size, config.hidden)
        self.posterior_norm = RMSNorm(config.hidden)
        self.posterior_out = Linear(config.hidden, logits)
        self.prior = nn.Sequential(MLP(config.deter, config.hidden, 2), Linear(config.hidden, logits))
        self._state: LatentState | None = None

    def initial(self, batch: int) -> LatentState:
        """Return the state before anything was seen: zeros, not learned."""
        c, device = self.config, self.posterior_in.weight.device
        return LatentState(
            torch.zeros(batch, c.deter, device=device), torch.zeros(batch, c.stoch, c.classes, device=device)
        )

    def forget_online_state(self) -> None:
        """Drop the cached state, so that the next call of `observe` without a state starts from zeros."""
        self._state = None

    def observe(
        self,
        tokens: Float[Tensor, "batch time tokens"],
        prev_action: Float[Tensor, "batch time action"],
        is_first: Bool[Tensor, "batch time"],
        noise: Noise,
        state: LatentState | None = None,
        detach_posteriors: bool = False,
    ) -> Observed:
        """Return posteriors and priors of T steps.

        Args:
            tokens: Encoded observations.
            prev_action: Action taken *before* each observation; ignored where `is_first`.
            is_first: Where an episode starts: state and action are zero before that observation.
            noise: What the latents are drawn from.
            state: State before the first step. None goes on from the state cached by the last such call
                (zeros at first), and caches the new one: the online state of acting.
            detach_posteriors: Detach everything returned and everything cached. Half of it leaks: a cached
                state with a graph holds the graph of every step before it.
        """
        batch, time = is_first.shape
        online = state is None
        state = state or self._state or self.initial(batch)
        keep = (~is_first).unsqueeze(-1).float()
        own, dense, action_weight = self.core.split_weights()
        action_inputs = self.core.action_input(prev_action * keep, action_weight)
        deter_weight, token_weight = self.posterior_in.weight.split(
            [self.config.deter, tokens.shape[-1]], dim=1
        )
        token_inputs = F.linear(tokens, token_weight, self.posterior_in.bias)
        races = noise.exponential(batch, time, self.config.stoch, self.config.classes)
        states: list[LatentState] = []
        logits: list[Tensor] = []
        # unbind, not indexing: the gradient of T slices is then one stack instead of T full-size additions.
        steps = zip(*(x.unbind(1) for x in (keep, action_inputs, token_inputs, races)), strict=True)
        for keep_t, action_t, token_t, race_t in steps:
            deter = self.core(state.deter * keep_t, state.flat_stoch * keep_t, action_t, own, dense)
            hidden = F.silu(self.posterior_norm(F.linear(deter, deter_weight) + token_t))
            logits.append(self._split(self.posterior_out(hidden)))
            state = LatentState(
                deter, straight_through(unimix_probs(logits[-1], self.config.latent_unimix), race_t)
            )
            states.append(state)
        posterior = LatentState.stack(states, 1)
        result = Observed(posterior, torch.stack(logits, 1), self.prior_logits(posterior.deter))
        if detach_posteriors:
            state = state.detach()
            result = Observed(
                posterior.detach(), result.posterior_logits.detach(), result.prior_logits.detach()
            )
        if online:
            self._state = state
        return result

    def prior_logits(self, deter: Float[Tensor, "*batch deter"]) -> Float[Tensor, "*batch stoch classes"]:
        """Return the logits of the latents before the observation is seen."""
        return self._split(self.prior(deter))

    def imagine(
        self,
        state: LatentState,
        policy: Callable[[int, LatentState], Float[Tensor, "batch action"]],
        horizon: int,
        noise: Noise,
    ) -> tuple[LatentState, Float[Tensor, "batch horizon action"]]:
        """Roll the prior forward.

        Args:
            state: Start states, (B, ...).
            policy: Gives the action of step i from the state it is taken in.
            horizon: Number H of transitions.
            noise: What the latents are drawn from.

        Returns:
            The start and the H states after it, (B, H + 1, ...), and the H actions between them.
        """
        own, dense, action_weight = self.core.split_weights()
        batch = state.deter.shape[0]
        races = noise.exponential(horizon, batch, self.config.stoch, self.config.classes)
        states, actions = [state], []
        for step in range(horizon):
            actions.append(policy(step, state))
            action_input = self.core.action_input(actions[-1], action_weight)
            deter = self.core(state.deter, state.flat_stoch, action_input, own, dense)
            probs = unimix_probs(self.prior_logits(deter), self.config.latent_unimix)
            state = LatentState(deter, sample_onehot(probs, races[step]))
            states.append(state)
        return LatentState.stack(states, 1), torch.stack(actions, 1)

    def _split(self, logits: Tensor) -> Float[Tensor, "*batch stoch classes"]:
        return logits.unflatten(-1, (self.config.stoch, self.config.classes))
