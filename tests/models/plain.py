"""The recurrent step in plain form, with our parameters, and initial states."""

import torch
from torch import Tensor

from reverie.models import LatentState
from reverie.models.layers import NormSiLU
from reverie.models.rssm import BlockGRU

from .tiny import TINY

BATCH = 3


def random_state() -> LatentState:
    index = torch.randint(TINY.classes, (BATCH, TINY.stoch))
    return LatentState(
        torch.randn(BATCH, TINY.deter), torch.nn.functional.one_hot(index, TINY.classes).float()
    )


def silu_norm(x: Tensor, norm: NormSiLU) -> Tensor:
    x = x / (x.square().mean(-1, keepdim=True) + 1e-4).sqrt() * norm.scale.double()
    return x * x.sigmoid()


def dense(x: Tensor, layer: torch.nn.Module) -> Tensor:
    assert isinstance(layer, torch.nn.Linear)
    return x @ layer.weight.double().t() + layer.bias.double()


def plain_step(core: BlockGRU, deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
    """Return the next recurrent state in float64, block by block, each with its own concatenation."""
    deter, stoch, action = deter.double(), stoch.double(), action.double()
    action = action / torch.maximum(action.abs(), torch.ones_like(action))
    shared = [
        silu_norm(dense(x, layers[0]), layers[1])  # pyright: ignore[reportArgumentType]
        for x, layers in ((deter, core.deter_in), (stoch, core.stoch_in), (action, core.action_in))
    ]
    own = deter.chunk(core.blocks, -1)
    mix = core.mix_weight.double()
    mixed = [torch.cat([own[g], *shared], -1) @ mix[g] for g in range(core.blocks)]
    hidden = silu_norm(torch.cat(mixed, -1) + core.mix_bias.double(), core.mix_norm).chunk(core.blocks, -1)
    biases = core.gates.bias.double().chunk(core.blocks)
    following = []
    for g in range(core.blocks):
        gates = hidden[g] @ core.gates.weight[g].double() + biases[g]
        reset, candidate, update = gates.chunk(3, -1)
        update = (update - 1).sigmoid()
        following.append(update * (reset.sigmoid() * candidate).tanh() + (1 - update) * own[g])
    return torch.cat(following, -1)
