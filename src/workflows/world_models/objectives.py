"""Decoder-free objectives (Barlow, InfoNCE) and Harmony's learned loss weights."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...buffers import SequenceBatch
from ...models.layers import truncated_normal_
from ...utils.ranks import ALONE, Ranks
from .config import BarlowConfig, Objective, WorldModelConfig

BALANCED = {"decoder": ("decoder/",), "reward": ("reward",), "kl": ("dynamics", "representation")}
"""Groups of losses that `Harmony` balances, with the prefixes of their names."""


class TokenPrediction(nn.Module):
    """Predicts the encoder's tokens from the state with a linear map. Targets are detached.

    The encoder learns only through the posterior. Reference: `dreamer.py` of NM512/r2dreamer at 546e4fa
    (arXiv:2603.18202), but with float64 statistics over all ranks and without constant tokens.
    """

    projection: Tensor | None

    def __init__(self, features: int, tokens: int, config: WorldModelConfig, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.objective, self.barlow, self.ranks = config.objective, config.barlow, ranks
        dims = min(config.barlow.dims or tokens, tokens)
        self.predictor = nn.Linear(features, dims, bias=False)
        truncated_normal_(self.predictor.weight, features)
        # The projection is fixed, because the targets are detached and could not train it.
        projection = None if dims == tokens else nn.init.orthogonal_(torch.empty(dims, tokens))
        self.register_buffer("projection", projection)

    def loss(
        self,
        feature: Float[Tensor, "*batch feature"],
        tokens: Float[Tensor, "*batch tokens"],
        steps: SequenceBatch | None = None,
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """Return the loss and metrics. Barlow's loss sums over token pairs, InfoNCE's is a mean in nats."""
        # Autocast does not affect float64. Half precision would be too coarse for the statistics.
        predicted = self.predictor(feature).flatten(0, -2).double()
        target = tokens.detach().flatten(0, -2).double()
        if self.projection is not None:
            target = target @ self.projection.double().t()
        predicted, target = self.ranks.gather(predicted), self.ranks.gather(target)
        if self.objective == Objective.infonce:
            return info_nce(predicted, target).float(), {}
        loss, alive = barlow(predicted, target, self.barlow)
        return loss.float(), {"dead_tokens": 1.0 - alive.float().mean()}


def barlow(
    predicted: Float[Tensor, "n d"], target: Float[Tensor, "n d"], config: BarlowConfig
) -> tuple[Float[Tensor, ""], Tensor]:
    """Return sum_i (C_ii - 1)^2 + redundancy_scale sum_ij C_ij^2 (i != j), and a mask (d,) of alive targets.

    C is the correlation of predictions with targets over the n samples. Targets are alive if they vary. Rows
    and columns of constant targets are excluded, because dividing by their deviation would yield noise.
    """
    alive = target.std(0) > config.least_deviation
    correlation = _standard(predicted).t() @ _standard(target) / len(target)
    diagonal = correlation.diagonal()
    redundant = correlation.square() * (alive & alive.unsqueeze(1))
    off_diagonal = redundant.sum() - (diagonal.square() * alive).sum()
    return ((diagonal - 1.0).square() * alive).sum() + config.redundancy_scale * off_diagonal, alive


def _standard(x: Tensor) -> Tensor:
    """Standardize x over the first axis, with a finite gradient at variance 0."""
    return (x - x.mean(0)) * (x.var(0) + 1e-8).rsqrt()


def info_nce(predicted: Float[Tensor, "n d"], target: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Return the mean cross-entropy, in nats, of identifying each prediction's target among all n."""
    own = torch.arange(len(target), device=target.device)
    return nn.functional.cross_entropy(predicted @ target.t(), own)


class Harmony(nn.Module):
    """Learned weights of the reward, decoder and KL losses: L / sigma + log(1 + sigma), sigma = exp(s).

    For large sigma, the optimal sigma is L, so each group contributes about 1 regardless of its units.
    Reference: Ma et al. 2024, arXiv:2310.00344; `agent.py` of thuml/HarmonyDream.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_sigma = nn.ParameterDict({group: nn.Parameter(torch.zeros(())) for group in BALANCED})

    def forward(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Replace the mean losses of each group with their balanced sum. Return all terms by name."""
        balanced = dict(means)
        for group, beginnings in BALANCED.items():
            of_group = [balanced.pop(name) for name in means if name.startswith(beginnings)]
            if of_group:
                s = self.log_sigma[group]
                balanced[group] = torch.stack(of_group).sum() * (-s).exp() + nn.functional.softplus(s)
        return balanced
