"""The recurrent state-space model: a block-diagonal GRU with categorical latents.

Shapes: B batch, T time, D deter, S latents, C classes, U hidden, A action width, G blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from .config import ModelConfig
from .distributions import Noise, sample_onehot, straight_through, unimix_probs
from .layers import MLP, BlockLinear, Linear, NormSiLU, norm_silu, product_dtype, truncated_normal_
from .scan import Scan


@dataclass(frozen=True, slots=True)
class LatentState:
    """Recurrent state and categorical sample with any leading axes, usually (batch,) or (batch, time)."""

    deter: Float[Tensor, "*batch deter"]
    stoch: Float[Tensor, "*batch stoch classes"]
    """One-hot samples. Posterior samples have straight-through gradients if gradients are enabled."""

    @property
    def flat_stoch(self) -> Float[Tensor, "*batch flat"]:
        """Return the samples with latents and classes merged into one axis."""
        return self.stoch.flatten(-2)

    @property
    def feature(self) -> Float[Tensor, "*batch feature"]:
        """Return the input of the heads: deter followed by the flat samples."""
        return torch.cat([self.deter, self.flat_stoch.to(self.deter.dtype)], -1)

    def detach(self) -> "LatentState":
        """Return the state detached from its graph."""
        return LatentState(self.deter.detach(), self.stoch.detach())

    def flatten(self) -> "LatentState":
        """Return the state with its first two axes (batch, time) merged."""
        return LatentState(self.deter.flatten(0, 1), self.stoch.flatten(0, 1))

    def select(self, index: "int | slice | tuple[int | slice, ...]") -> "LatentState":
        """Index the leading axes."""
        return LatentState(self.deter[index], self.stoch[index])

    @staticmethod
    def stack(states: list["LatentState"], dim: int) -> "LatentState":
        """Stack states along a new axis."""
        return LatentState(
            torch.stack([s.deter for s in states], dim), torch.stack([s.stoch for s in states], dim)
        )


@dataclass(frozen=True, slots=True)
class RSSMOutput:
    """States and logits after each of T observations. `prior_time` is 0 if no priors were requested."""

    posterior: LatentState
    posterior_logits: Float[Tensor, "batch time stoch classes"]
    prior_logits: Float[Tensor, "batch prior_time stoch classes"]


class BlockGRU(nn.Module):
    """A GRU with D units in G blocks. The blocks share the latent sample and the action.

    Every block reads concat[its part of deter, x_deter, x_stoch, x_action]. See `action_input` for x_action.
    A step receives its weights as arguments, because a `Scan` passes copies without gradients.

    Reference: `RSSM._core` in `dreamerv3/rssm.py` of danijar/dreamerv3 at e3f0224.
    """

    def __init__(self, action_size: int, config: ModelConfig) -> None:
        super().__init__()
        deter, hidden, self.blocks = config.deter, config.hidden, config.blocks
        self.action_size = action_size
        self.width = deter // self.blocks
        self.deter_in = MLP(deter, hidden, 1)
        self.stoch_in = MLP(config.stoch * config.classes, hidden, 1)
        self.action_in = MLP(action_size, hidden, 1)
        self.mix_weight = nn.Parameter(torch.empty(self.blocks, self.width + 3 * hidden, self.width))
        self.mix_bias = nn.Parameter(torch.zeros(deter))
        self.mix_norm = NormSiLU(deter)
        self.gates = BlockLinear(deter, 3 * deter, self.blocks)
        truncated_normal_(self.mix_weight, self.blocks * (self.width + 3 * hidden))

    def split_weights(self) -> tuple[Tensor, Tensor]:
        """Return the mixing weights of state and latents, (G, D/G + 2U, D/G), and of actions, (G, U, D/G)."""
        hidden = (self.mix_weight.shape[1] - self.width) // 3
        recurrent, action = self.mix_weight.split([self.width + 2 * hidden, hidden], dim=1)
        return recurrent, action

    def weights(self, recurrent: Tensor) -> tuple[Tensor, ...]:
        """Return the weights of a step, (D, U), (S C, U), `recurrent` and (G, D/G, 3D/G)."""
        return self.deter_in[0].weight.t(), self.stoch_in[0].weight.t(), recurrent, self.gates.weight  # pyright: ignore

    def added(self, action_input: Float[Tensor, "*batch deter"]) -> tuple[Tensor, ...]:
        """Return the terms added to a step's products: biases, and the action's part (G, *, B, D/G)."""
        blocks = action_input.view(*action_input.shape[:-1], self.blocks, self.width).movedim(-2, 0)
        biases = self.gates.bias.view(self.blocks, 1, -1)
        return self.deter_in[0].bias, self.stoch_in[0].bias, blocks, biases  # pyright: ignore

    def scales(self) -> tuple[Tensor, ...]:
        """Return the scales of a step's norms: (U,), (U,) and (D,)."""
        return self.deter_in[1].scale, self.stoch_in[1].scale, self.mix_norm.scale  # pyright: ignore

    def action_input(
        self, action: Float[Tensor, "*batch action"], weight: Float[Tensor, "blocks hidden width"]
    ) -> Float[Tensor, "*batch deter"]:
        """Return the action's contribution to the mixing layer, including the bias."""
        action = action / action.detach().abs().clamp(min=1.0)
        hidden = self.action_in(action).flatten(0, -2).expand(self.blocks, -1, -1)
        mixed = torch.baddbmm(self.mix_bias.view(self.blocks, 1, -1), hidden, weight)
        return mixed.transpose(0, 1).reshape(*action.shape[:-1], -1)

    def forward(
        self,
        deter: Float[Tensor, "batch deter"],
        stoch: Float[Tensor, "batch flat"],
        added: Sequence[Tensor],
        scales: Sequence[Tensor],
        weights: Sequence[Tensor],
    ) -> tuple[Float[Tensor, "batch deter"], list[Tensor]]:
        """Return the next recurrent state and the input of each product.

        `added`, `scales` and `weights` are the results of the methods with these names, or a `Scan` of them.
        """
        dtype = weights[0].dtype
        inputs = [deter.to(dtype), stoch.to(dtype)]
        first = zip(added, inputs, weights, scales, strict=False)
        shared = torch.cat([norm_silu(torch.addmm(*affine), scale) for *affine, scale in first], -1)
        # Block products are (G, B, ...), and all other tensors are (B, G, ...). This is cheaper than copying.
        own = deter.unflatten(-1, (self.blocks, self.width))
        joined = torch.cat([own.to(dtype), shared.unsqueeze(1).expand(-1, self.blocks, -1)], -1)
        mixed = torch.baddbmm(added[2], joined.transpose(0, 1), weights[2]).transpose(0, 1)
        hidden = norm_silu(mixed.flatten(1), scales[2])
        gates = torch.baddbmm(added[3], hidden.view_as(own).transpose(0, 1), weights[3])
        # The outputs of each block are ordered as reset, candidate and update.
        reset, candidate, update = gates.chunk(3, -1)
        candidate = (reset.sigmoid() * candidate).tanh().transpose(0, 1).float()
        update = (update - 1.0).sigmoid().transpose(0, 1).float()
        return torch.lerp(own, candidate, update).flatten(1), [*inputs, joined, hidden]


class RSSM(nn.Module):
    """Recurrent state-space model: the memory and the latent dynamics of the world model.

    Args:
        action_size: Width of the action vector.
        token_size: Width of an encoded observation.
        config: Network sizes. Defaults to size12m.
    """

    def __init__(self, action_size: int, token_size: int, config: ModelConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ModelConfig()
        logits = config.stoch * config.classes
        self.core = BlockGRU(action_size, config)
        self.posterior_in = Linear(config.deter + token_size, config.hidden)
        self.posterior_norm = NormSiLU(config.hidden)
        self.posterior_out = Linear(config.hidden, logits)
        self.prior = nn.Sequential(MLP(config.deter, config.hidden, 2), Linear(config.hidden, logits))
        self._state: LatentState | None = None

    def initial(self, batch: int) -> LatentState:
        """Return the state before the first observation. It is zero and not learned."""
        c, device = self.config, self.posterior_in.weight.device
        return LatentState(
            torch.zeros(batch, c.deter, device=device), torch.zeros(batch, c.stoch, c.classes, device=device)
        )

    def online_state(self, batch: int) -> LatentState:
        """Return the cached state for acting, or zeros before the first step."""
        return self._state or self.initial(batch)

    def set_online_state(self, state: LatentState | None) -> None:
        """Cache a state without a graph for acting. `None` resets the cached state to zeros."""
        self._state = state

    def noise(self, source: Noise, *lead: int, axis: int = 0) -> Float[Tensor, "*lead stoch classes"]:
        """Draw Exp(1) noise for the latents. `axis` is the batch axis."""
        return source.exponential(*lead, self.config.stoch, self.config.classes, axis=axis)

    def observe(
        self,
        tokens: Float[Tensor, "batch time tokens"],
        prev_action: Float[Tensor, "batch time action"],
        is_first: Bool[Tensor, "batch time"],
        latent_noise: Float[Tensor, "batch time stoch classes"],
        state: LatentState | None = None,
        detach_posteriors: bool = False,
        compute_prior: bool = True,
    ) -> RSSMOutput:
        """Return the posteriors and priors of T steps.

        Args:
            tokens: Encoded observations.
            prev_action: Action taken *before* each observation. It is ignored where `is_first` is set.
            is_first: Where an episode starts. State and action are zeroed before that observation.
            latent_noise: Exp(1) noise of the latents.
            state: State before the first step. `None` continues from the cached state for acting (initially
                zeros) and caches the new one.
            detach_posteriors: Detach returned and cached tensors. A cached graph retains all earlier graphs.
            compute_prior: Whether to compute prior logits, which acting does not need.
        """
        online = state is None
        state = state or self.online_state(len(is_first))
        keep = (~is_first).unsqueeze(-1).float()
        core, (batch, time) = self.core, is_first.shape
        recurrent, action_weight = core.split_weights()
        action_inputs = core.action_input(prev_action * keep, action_weight).transpose(0, 1)
        deter_weight, token_weight = self.posterior_in.weight.split(
            [self.config.deter, tokens.shape[-1]], dim=1
        )
        token_inputs = F.linear(tokens, token_weight, self.posterior_in.bias).transpose(0, 1)
        scan = Scan(
            weights=(*core.weights(recurrent), self.posterior_out.weight.t(), deter_weight.t()),
            added=(*core.added(action_inputs), self.posterior_out.bias, token_inputs),
            scales=(*core.scales(), self.posterior_norm.scale),
            steps=time,
            rows=batch,
            dtype=product_dtype(tokens),
        )
        states: list[LatentState] = []
        logits: list[Tensor] = []
        steps = zip(keep.unbind(1), latent_noise.unbind(1), scan.steps(), strict=True)
        for keep_t, noise_t, (added, scales) in steps:
            deter, stoch, logits_t, inputs = self.observe_step(
                state.deter, state.stoch, keep_t, noise_t, added, scales, scan.weights
            )
            scan.keep([*inputs, deter.detach()])
            state = LatentState(deter, stoch)
            states.append(state)
            logits.append(logits_t)
        posterior, posterior_logits = LatentState.stack(states, 1), torch.stack(logits, 1)
        prior_logits = self.prior_logits(posterior.deter) if compute_prior else posterior_logits[:, :0]
        if detach_posteriors:
            state, posterior = state.detach(), posterior.detach()
            posterior_logits, prior_logits = posterior_logits.detach(), prior_logits.detach()
        if online:
            self._state = state
        return RSSMOutput(posterior, posterior_logits, prior_logits)

    def observe_step(
        self,
        deter: Float[Tensor, "batch deter"],
        stoch: Float[Tensor, "batch stoch classes"],
        keep: Float[Tensor, "batch 1"],
        latent_noise: Float[Tensor, "batch stoch classes"],
        added: Sequence[Tensor],
        scales: Sequence[Tensor],
        weights: Sequence[Tensor],
    ) -> tuple[
        Float[Tensor, "batch deter"],
        Float[Tensor, "batch stoch classes"],
        Float[Tensor, "batch stoch classes"],
        list[Tensor],
    ]:
        """Return the state and logits after one observation, and the detached inputs of the products.

        This is a compilable function of tensors. `keep` is 0 where an episode starts and 1 elsewhere.
        `added`, `scales` and `weights` belong to the core, then to the output and the input layer of the
        posterior. `added` contains the contributions of action and token. The input layer reads the
        returned deter, which is therefore not among the returned inputs.
        """
        deter, inputs = self.core(deter * keep, stoch.flatten(-2) * keep, added, scales, weights)
        hidden = torch.addmm(added[-1], deter.to(weights[-1].dtype), weights[-1])
        inputs.append(norm_silu(hidden, scales[-1]))
        logits = self._split(torch.addmm(added[-2], inputs[-1], weights[-2]))
        stoch = straight_through(unimix_probs(logits, self.config.latent_unimix), latent_noise)
        return deter, stoch, logits, [x.detach() for x in inputs]

    def imagine_step(
        self,
        deter: Float[Tensor, "batch deter"],
        stoch: Float[Tensor, "batch stoch classes"],
        action_input: Float[Tensor, "batch deter"],
        latent_noise: Float[Tensor, "batch stoch classes"],
        weights: Sequence[Tensor],
    ) -> tuple[Float[Tensor, "batch deter"], Float[Tensor, "batch stoch classes"]]:
        """Return the state that the prior predicts after an action. `weights` belong to the core."""
        core, dtype = self.core, weights[0].dtype
        added = [x.to(dtype) for x in core.added(action_input)]
        deter, _ = core(deter, stoch.flatten(-2), added, core.scales(), weights)
        return deter, sample_onehot(
            unimix_probs(self.prior_logits(deter), self.config.latent_unimix), latent_noise
        )

    def prior_logits(self, deter: Float[Tensor, "*batch deter"]) -> Float[Tensor, "*batch stoch classes"]:
        """Return the logits of the latents, as predicted without the observation."""
        return self._split(self.prior(deter))

    def imagine(
        self,
        state: LatentState,
        policy: Callable[[int, LatentState], Float[Tensor, "batch action"]],
        latent_noise: Float[Tensor, "horizon batch stoch classes"],
        is_onehot: bool = False,
    ) -> tuple[list[LatentState], list[Float[Tensor, "batch action"]]]:
        """Roll out the prior. Return the start and H predicted states, and the H actions between them.

        Args:
            state: Start states, (B, ...).
            policy: Returns the action for a step index and a state.
            latent_noise: Exp(1) noise of the latents of H transitions.
            is_onehot: Whether actions are one-hot. Their A possible contributions are then precomputed.
        """
        dtype = product_dtype(state.deter)
        recurrent, action_weight = self.core.split_weights()
        weights = [weight.to(dtype) for weight in self.core.weights(recurrent)]
        every_action = torch.eye(self.core.action_size, device=state.deter.device)
        table = self.core.action_input(every_action, action_weight) if is_onehot else None
        states, actions = [state], []
        for step in range(len(latent_noise)):
            action = policy(step, state)
            if table is None:
                action_input = self.core.action_input(action, action_weight)
            else:
                action_input = torch.mm(action, table)
            state = LatentState(
                *self.imagine_step(state.deter, state.stoch, action_input, latent_noise[step], weights)
            )
            states.append(state)
            actions.append(action)
        return states, actions

    def _split(self, logits: Tensor) -> Float[Tensor, "*batch stoch classes"]:
        return logits.unflatten(-1, (self.config.stoch, self.config.classes))
