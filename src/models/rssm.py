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
from .layers import (
    MLP,
    BlockLinear,
    Linear,
    NormSiLU,
    norm_silu,
    product_dtype,
    runs_on_cpu,
    truncated_normal_,
)
from .scan import Scan, stack_steps


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
        """Return the weights of a step, (S C, U), `recurrent` and (G, D/G, 3D/G)."""
        return self.stoch_in[0].weight.t(), recurrent, self.gates.weight  # pyright: ignore

    def added(self, action_input: Float[Tensor, "*batch deter"]) -> tuple[Tensor, ...]:
        """Return the terms added to a step's products: biases, and the action's part (*, G, D/G)."""
        of_action = action_input.unflatten(-1, (self.blocks, self.width))
        return self.stoch_in[0].bias, of_action, self.gates.bias.view(self.blocks, -1)  # pyright: ignore

    def vectors(self) -> tuple[Tensor, ...]:
        """Return the bias of `deter_in` and the scales of a step's norms: (U,), (U,), (U,) and (D,)."""
        inputs = self.deter_in[0].bias, self.deter_in[1].scale, self.stoch_in[1].scale
        return *inputs, self.mix_norm.scale  # pyright: ignore

    @property
    def deter_weight(self) -> Float[Tensor, "hidden deter"]:
        """The weight of `deter_in`."""
        return self.deter_in[0].weight  # pyright: ignore

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
        projection: Float[Tensor, "batch hidden"],
        stoch: Float[Tensor, "batch flat"],
        added: Sequence[Tensor],
        vectors: Sequence[Tensor],
        weights: Sequence[Tensor],
    ) -> tuple[Float[Tensor, "batch blocks width"], list[Tensor]]:
        """Return the blocks of the next recurrent state and the inputs of the last two products.

        `projection` is the product of `deter` and `deter_weight`. The caller computes it, because the
        posterior multiplies the same state by another weight, and one product can compute both. `added`,
        `vectors` and `weights` are the results of the methods with these names, or a `Scan` of them.
        """
        dtype = weights[0].dtype
        shared = [
            norm_silu(vectors[0] + projection, vectors[1]).to(dtype),
            norm_silu(affine(stoch.to(dtype), weights[0], added[0]), vectors[2]).to(dtype),
        ]
        own = deter.unflatten(-1, (self.blocks, self.width))
        shared = [x.unsqueeze(1).expand(-1, self.blocks, -1) for x in shared]
        joined = torch.cat([own.to(dtype), *shared], -1)
        mixed = affine(joined, weights[1], added[1])
        hidden = norm_silu(mixed.flatten(1), vectors[3]).to(dtype).view_as(own)
        # The outputs of each block are ordered as reset, candidate and update.
        reset, candidate, update = affine(hidden, weights[2], added[2]).chunk(3, -1)
        candidate = (reset.sigmoid() * candidate).tanh()
        return torch.lerp(own, candidate, (update - 1.0).sigmoid()), [joined, hidden]


def affine(x: Tensor, weight: Tensor, added: Tensor) -> Tensor:
    """Return x W + b in float32. The weight is dense, (I, O), or block-diagonal, (G, I, O), for (B, G, I).

    On a GPU, `torch.addmm` would first copy b, (B, O), to its result. A compiler merges a separate sum with
    the next operators.
    """
    is_dense = weight.dim() == 2
    if not is_dense:
        x, added = x.transpose(0, 1), added.expand(*x.shape[:-1], -1).transpose(0, 1)
    if runs_on_cpu(x):
        y = (torch.addmm if is_dense else torch.baddbmm)(added, x, weight).float()
    else:
        y = (torch.mm if is_dense else torch.bmm)(x, weight).float() + added
    return y if is_dense else y.transpose(0, 1)


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
        # The posterior and the next step multiply the same new state. One product computes both results.
        joint = deter_weight
        if time > 1:
            joint = torch.cat([deter_weight, core.deter_weight])
            token_inputs = F.pad(token_inputs, (0, self.config.hidden))
        scan = Scan(
            weights=(*core.weights(recurrent), self.posterior_out.weight.t(), joint.t()),
            added=(*core.added(action_inputs), self.posterior_out.bias, token_inputs),
            vectors=(*core.vectors(), self.posterior_norm.scale),
            steps=time,
            rows=batch,
            dtype=product_dtype(tokens),
        )
        columns: list[list[Tensor]] = [[], [], []]
        masks = F.pad(keep, (0, 0, 0, 1), value=1.0).unbind(1) if time > 1 else (keep[:, 0], None)
        first, *following = masks
        deter, stoch = state.deter * first, (state.flat_stoch * first).to(scan.weights[0].dtype)
        projection = F.linear(deter, core.deter_weight).float()
        if projection.requires_grad:
            # The inputs of later steps require gradients. With different inputs of the first step, a compiler
            # would need a second version of the step.
            deter, stoch = deter.requires_grad_(), stoch.requires_grad_()
        steps = zip(following, latent_noise.unbind(1), scan.steps(), strict=True)
        for keep_next, noise, (added, vectors) in steps:
            outputs, next_inputs, inputs = self.observe_step(
                deter, projection, stoch, keep_next, noise, added, vectors, scan.weights
            )
            scan.keep([stoch.detach(), *inputs, outputs[0].detach()])
            deter, projection, stoch = next_inputs
            for column, x in zip(columns, outputs, strict=True):
                column.append(x)
        posterior_deter, posterior_stoch, posterior_logits = (stack_steps(column) for column in columns)
        state = LatentState(columns[0][-1], columns[1][-1])
        posterior = LatentState(posterior_deter, posterior_stoch)
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
        projection: Float[Tensor, "batch hidden"],
        stoch: Float[Tensor, "batch flat"],
        keep_next: Float[Tensor, "batch 1"] | None,
        latent_noise: Float[Tensor, "batch stoch classes"],
        added: Sequence[Tensor],
        vectors: Sequence[Tensor],
        weights: Sequence[Tensor],
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor], list[Tensor]]:
        """Take one step with an observation. This is a compilable function of tensors.

        `added`, `vectors` and `weights` belong to the core, then to the posterior. `added` contains the
        contributions of action and token. The last weight belongs to the posterior's input layer and, unless
        `keep_next` is `None`, to the next `projection`.

        Args:
            deter: Recurrent state before the step, or zeros where an episode starts.
            projection: See `BlockGRU.forward`.
            stoch: Samples before the step in the dtype of products, or zeros where an episode starts.
            keep_next: 0 where the next step starts an episode, and 1 elsewhere. A compiler merges this mask
                with the last operators of this step. `None` without a next step.
            latent_noise: Exp(1) noise.
            added: Terms of the products.
            vectors: Biases and scales.
            weights: Weights of the products.

        Returns:
            Three groups. The first contains the new state and its logits: (B, D), (B, S, C) and (B, S, C).
            The second contains `deter`, `projection` and `stoch` for the next step. Without a next step, they
            are unchanged. The third contains the detached inputs of the products, without `stoch` and the new
            state, which the first and the last product read.
        """
        dtype = weights[-1].dtype
        blocks, inputs = self.core(deter, projection, stoch, added, vectors, weights)
        # This converts blocks before flattening them, so that a compiler merges it into the gates' kernel.
        hidden = affine(blocks.to(dtype).flatten(1), weights[-1], added[-1])
        following = deter, projection, stoch
        if keep_next is not None:
            hidden, projection = hidden.split(self.config.hidden, -1)
        inputs.append(norm_silu(hidden, vectors[-1]).to(dtype))
        logits = self._split(affine(inputs[-1], weights[-2], added[-2]))
        sample = straight_through(unimix_probs(logits, self.config.latent_unimix), latent_noise)
        if keep_next is not None:
            # A product with blocks is merged into the kernel of the gates.
            next_deter = (blocks * keep_next.unsqueeze(-1)).flatten(1)
            next_stoch = (sample.flatten(-2) * keep_next).to(dtype)
            following = next_deter, projection * keep_next, next_stoch
        return (blocks.flatten(1), sample, logits), following, [x.detach() for x in inputs]

    def imagine_step(
        self,
        deter: Float[Tensor, "batch deter"],
        stoch: Float[Tensor, "batch stoch classes"],
        action: Float[Tensor, "batch _"],
        latent_noise: Float[Tensor, "batch stoch classes"],
        weights: Sequence[Tensor],
        table: Float[Tensor, "actions deter"] | None = None,
    ) -> tuple[Float[Tensor, "batch deter"], Float[Tensor, "batch stoch classes"]]:
        """Return the state that the prior predicts after an action.

        `weights` belong to the core, followed by its transposed `deter_weight`. `action` is one-hot if there
        is a `table` of the contributions of all actions. Otherwise, it is the action's contribution, (B, D).
        """
        core, dtype = self.core, weights[0].dtype
        action_input = action if table is None else F.embedding(action.argmax(-1), table)
        projection = torch.mm(deter.to(dtype), weights[-1]).float()
        blocks, _ = core(
            deter, projection, stoch.flatten(-2), core.added(action_input), core.vectors(), weights
        )
        logits = self.prior_logits(blocks.to(dtype).flatten(1))
        return blocks.flatten(1), sample_onehot(unimix_probs(logits, self.config.latent_unimix), latent_noise)

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
            is_onehot: Whether actions are one-hot, without gradients. Their A possible contributions are then
                precomputed.
        """
        dtype = product_dtype(state.deter)
        recurrent, action_weight = self.core.split_weights()
        weights = [x.to(dtype) for x in (*self.core.weights(recurrent), self.core.deter_weight.t())]
        every_action = torch.eye(self.core.action_size, device=state.deter.device)
        table = self.core.action_input(every_action, action_weight) if is_onehot else None
        states, actions = [state], []
        for step in range(len(latent_noise)):
            action = policy(step, state)
            given = action if table is not None else self.core.action_input(action, action_weight)
            state = LatentState(
                *self.imagine_step(state.deter, state.stoch, given, latent_noise[step], weights, table)
            )
            states.append(state)
            actions.append(action)
        return states, actions

    def _split(self, logits: Tensor) -> Float[Tensor, "*batch stoch classes"]:
        return logits.unflatten(-1, (self.config.stoch, self.config.classes))
