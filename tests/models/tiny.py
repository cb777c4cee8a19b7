"""Small sizes for tests that compare numbers."""

import torch
from torch import nn

from reverie.models import RSSM, ModelConfig, Noise

CPU = torch.device("cpu")
MODE = Noise(None, CPU)

# All widths differ, so that swapped axes are detected.
TINY = ModelConfig(
    units=16,
    deter=32,
    hidden=12,
    stoch=5,
    classes=3,
    depth=2,
    blocks=4,
    encoder_layers=1,
    decoder_layers=1,
    actor_layers=1,
    critic_layers=1,
)
ACTION_SIZE, TOKEN_SIZE = 6, 7


def seeded(seed: int) -> Noise:
    return Noise(torch.Generator().manual_seed(seed), CPU)


@torch.no_grad()
def perturb(module: nn.Module, size: float = 0.2) -> None:
    """Change all parameters from their initial values: zero heads and biases, and norm scales of one."""
    for parameter in module.parameters():
        parameter.add_(size * torch.randn_like(parameter))


def tiny_rssm() -> RSSM:
    rssm = RSSM(ACTION_SIZE, TOKEN_SIZE, TINY)
    perturb(rssm)
    return rssm
