"""Categorical latents, policies and their sampling noise.

Sampling functions receive their noise as an argument (see `Noise`). Scans are therefore pure functions, and a
single call draws the noise for a whole window. Golden tests and `policy=mode` run the same code with constant
noise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..utils.ranks import ALONE, Ranks

SHORT_AXIS = 64
_HOST = torch.device("cpu")
# Bounds for continuous policies, from dreamerv3's configs.yaml: policy.minstd and policy.maxstd.
MIN_STD, MAX_STD = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Source of sampling noise on one device. Without a generator, each sample is the distribution's mode.

    All `ranks` use the same generator. Each rank draws the noise of all ranks and keeps its part, so the
    noise does not depend on the number of ranks. Shapes are per rank, and `axis` is divided among the ranks.
    """

    generator: torch.Generator | None = None
    device: torch.device = _HOST
    ranks: Ranks = ALONE

    def get_state(self) -> Tensor:
        """Return the generator's state, or an empty tensor without a generator."""
        return torch.empty(0, dtype=torch.uint8) if self.generator is None else self.generator.get_state()

    def set_state(self, state: Tensor) -> None:
        """Set the generator's state. A state from another type of device is ignored."""
        if self.generator is not None and state.numel() == self.generator.get_state().numel():
            self.generator.set_state(state.cpu())

    def exponential(self, *shape: int, axis: int = 0) -> Float[Tensor, "..."]:
        """Return Exp(1) noise: argmax(p / noise) is a sample of p, or its mode if the noise is constant."""
        if self.generator is None:
            return torch.ones(shape, device=self.device)
        # This is five times faster than `exponential_` on a CPU. -log(0) is infinity and never chosen.
        return self._part(torch.rand, shape, axis).log_().neg_()

    def normal(self, *shape: int, axis: int = 0) -> Float[Tensor, "..."]:
        """Return standard normal noise, or zeros without a generator."""
        if self.generator is None:
            return torch.zeros(shape, device=self.device)
        return self._part(torch.randn, shape, axis)

    def _part(self, draw: Callable[..., Tensor], shape: tuple[int, ...], axis: int) -> Tensor:
        """Draw numbers for all ranks. Return a copy of this rank's part, so that all others can be freed."""
        total = shape[axis] * self.ranks.size
        whole = (*shape[:axis], total, *shape[axis + 1 :])
        drawn = draw(whole, device=self.device, generator=self.generator)
        if self.ranks.size == 1:
            return drawn
        return drawn.movedim(axis, 0)[self.ranks.slice_of(total)].movedim(0, axis).clone()


def symlog(x: Tensor) -> Tensor:
    """Return sign(x) ln(1 + |x|)."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """Return sign(x) (exp(|x|) - 1), the inverse of `symlog`."""
    return x.sign() * x.abs().expm1()


def _softmax(x: Tensor) -> Tensor:
    """Return the softmax over the last axis. For short axes on a CPU, torch's is seven times as slow."""
    if x.device.type != "cpu" or x.shape[-1] > SHORT_AXIS:
        return x.softmax(-1)
    return x.movedim(-1, 0).contiguous().softmax(0).movedim(0, -1).contiguous()


def unimix_probs(logits: Float[Tensor, "*batch classes"], unimix: float) -> Float[Tensor, "*batch classes"]:
    """Return float32 probabilities (1 - unimix) softmax(logits) + unimix / classes."""
    return (1.0 - unimix) * _softmax(logits.float()) + unimix / logits.shape[-1]


def unimix_log_probs(
    logits: Float[Tensor, "*batch classes"], unimix: float
) -> Float[Tensor, "*batch classes"]:
    """Return float32 log-probabilities of (1 - unimix) softmax(logits) + unimix / classes."""
    if unimix == 0.0:
        return logits.float().log_softmax(-1)
    return unimix_probs(logits, unimix).log()


def unimix_log_probs_of_parts(
    logits: Float[Tensor, "*batch classes"], parts: tuple[int, ...], unimix: float
) -> Float[Tensor, "*batch classes"]:
    """Return the `unimix_log_probs` of each block of logits separately. `parts` are the block sizes."""
    return torch.cat([unimix_log_probs(block, unimix) for block in logits.split(parts, -1)], -1)


def sample_onehot(
    probs: Float[Tensor, "*batch classes"], noise: Float[Tensor, "*batch classes"]
) -> Float[Tensor, "*batch classes"]:
    """Return a one-hot sample without a gradient: the winner of an exponential race (like Gumbel-max)."""
    winner = (probs.detach() / noise).argmax(-1, keepdim=True)
    return torch.zeros_like(noise).scatter_(-1, winner, 1.0)


def straight_through(
    probs: Float[Tensor, "*batch classes"], noise: Float[Tensor, "*batch classes"]
) -> Float[Tensor, "*batch classes"]:
    """Return a one-hot sample with the gradient of the probabilities."""
    onehot = sample_onehot(probs, noise)
    return onehot + (probs - probs.detach()) if probs.requires_grad else onehot


def categorical_kl(
    left: Float[Tensor, "*batch latents classes"], right: Float[Tensor, "*batch latents classes"]
) -> Float[Tensor, "*batch"]:
    """Return KL(left || right) in nats from log-probabilities, summed over classes and latents."""
    return (left.exp() * (left - right)).sum((-2, -1))


def categorical_entropy(log_probs: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
    """Return the entropy in nats."""
    return -(log_probs.exp() * log_probs).sum(-1)


@dataclass(frozen=True, slots=True)
class CategoricalPolicy:
    """A discrete policy with one-hot actions."""

    log_probs: Float[Tensor, "*batch actions"]

    def sample(self, noise: Float[Tensor, "*batch actions"]) -> Float[Tensor, "*batch actions"]:
        """Return a one-hot action without a gradient."""
        return sample_onehot(self.log_probs.exp(), noise)

    def log_prob(self, action: Float[Tensor, "*batch actions"]) -> Float[Tensor, "*batch"]:
        """Return the log-probability of one-hot actions, in nats."""
        return (self.log_probs * action).sum(-1)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Return the entropy in nats."""
        return categorical_entropy(self.log_probs)


@dataclass(frozen=True, slots=True)
class MultiCategoricalPolicy(CategoricalPolicy):
    """Several discrete choices, independent given the state. Actions consist of one-hot blocks.

    Log-probabilities are normalized per block, so their sum is the log-probability of the joint action.
    """

    parts: tuple[int, ...]

    def sample(self, noise: Float[Tensor, "*batch actions"]) -> Float[Tensor, "*batch actions"]:
        """Return one-hot blocks without a gradient."""
        probs = self.log_probs.exp().split(self.parts, -1)
        blocks = zip(probs, noise.split(self.parts, -1), strict=True)
        return torch.cat([sample_onehot(*block) for block in blocks], -1)


@dataclass(frozen=True, slots=True)
class NormalPolicy:
    """A continuous policy: an unsquashed diagonal normal. The environment clips its actions."""

    mean: Float[Tensor, "*batch actions"]
    std: Float[Tensor, "*batch actions"]

    def sample(self, noise: Float[Tensor, "*batch actions"]) -> Float[Tensor, "*batch actions"]:
        """Return an action without a gradient."""
        return (self.mean + self.std * noise).detach()

    def log_prob(self, action: Float[Tensor, "*batch actions"]) -> Float[Tensor, "*batch"]:
        """Return the log-density in nats, summed over dimensions."""
        return torch.distributions.Normal(self.mean, self.std, validate_args=False).log_prob(action).sum(-1)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Return the differential entropy in nats, summed over dimensions."""
        return torch.distributions.Normal(self.mean, self.std, validate_args=False).entropy().sum(-1)


Policy = CategoricalPolicy | NormalPolicy


def bounded_normal(
    mean: Float[Tensor, "*batch actions"], std: Float[Tensor, "*batch actions"]
) -> NormalPolicy:
    """Return the normal distribution with mean tanh(mean) and std MIN + (MAX - MIN) sigmoid(std + 2)."""
    return NormalPolicy(mean.float().tanh(), MIN_STD + (MAX_STD - MIN_STD) * torch.sigmoid(std.float() + 2.0))
