"""Distributions of the model: categorical latents, two-hot numbers, policies; and their sampling noise.

Sampling takes noise from outside (`Noise`), so that a scan is a pure function, the whole noise of a window is
drawn in one call, and a deterministic run (golden tests, `policy=mode`) is the same code with constant noise.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

MIN_STD, MAX_STD = 0.1, 1.0  # of continuous policies; dreamerv3 configs.yaml: policy.minstd, maxstd


@dataclass(frozen=True, slots=True)
class Noise:
    """Source of sampling noise on one device.

    Args:
        generator: Source of randomness; None gives the mode of every distribution.
        device: Device of the noise.
    """

    generator: torch.Generator | None
    device: torch.device

    def get_state(self) -> Tensor:
        """Return the generator's state; empty without one."""
        return torch.empty(0, dtype=torch.uint8) if self.generator is None else self.generator.get_state()

    def set_state(self, state: Tensor) -> None:
        """Set the generator's state; a state of another kind of device is ignored, its stream starts anew."""
        if self.generator is not None and state.numel() == self.generator.get_state().numel():
            self.generator.set_state(state.cpu())

    def exponential(self, *shape: int) -> Float[Tensor, "..."]:
        """Return Exp(1) noise; argmax(p / noise) is a sample of p, and of noise 1 its mode."""
        if self.generator is None:
            return torch.ones(shape, device=self.device)
        # -log of a uniform number, five times faster on a CPU than `exponential_`; 0 gives infinity, which
        # never wins.
        return torch.rand(shape, device=self.device, generator=self.generator).log_().neg_()

    def normal(self, *shape: int) -> Float[Tensor, "..."]:
        """Return standard normal noise; zeros for the mean."""
        noise = torch.zeros(shape, device=self.device)
        return noise if self.generator is None else noise.normal_(generator=self.generator)


@dataclass(frozen=True, slots=True)
class PresampledNoise:
    """Exp(1) noise that is drawn in advance, so that its users are functions of tensors alone."""

    numbers: Tensor

    def exponential(self, *shape: int) -> Float[Tensor, "..."]:
        """Return the numbers in this shape."""
        return self.numbers.view(shape)


def symlog(x: Tensor) -> Tensor:
    """Return sign(x) ln(1 + |x|)."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """Return sign(x) (exp(|x|) - 1), the inverse of `symlog`."""
    return x.sign() * x.abs().expm1()


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


def sample_onehot(
    probs: Float[Tensor, "*batch classes"], noise: Float[Tensor, "*batch classes"]
) -> Float[Tensor, "*batch classes"]:
    """Return a one-hot sample without gradient from Exp(1) noise.

    This is the exponential race, a form of Gumbel-max.
    """
    winner = (probs.detach() / noise).argmax(-1, keepdim=True)
    return torch.zeros_like(noise).scatter_(-1, winner, 1.0)


def straight_through(
    probs: Float[Tensor, "*batch classes"], noise: Float[Tensor, "*batch classes"]
) -> Float[Tensor, "*batch classes"]:
    """Return a one-hot sample whose gradient is that of the probabilities."""
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


def twohot_bins(bins: int) -> Float[Tensor, "bins"]:
    """Return the raw values of the bins: symexp of `bins` even points in [-20, 20].

    They are mirrored so that they are odd.
    """
    half = symexp(torch.linspace(-20.0, 0.0, (bins - 1) // 2 + 1))
    return torch.cat([half, -half[:-1].flip(0)])


def twohot_mean(logits: Float[Tensor, "*batch bins"], bins: Float[Tensor, "bins"]) -> Float[Tensor, "*batch"]:
    """Return the expectation in raw units, float32, exactly 0 for symmetric probabilities.

    The outermost bins are +-4.85e8, so a plain sum would cancel badly: mirrored probabilities are subtracted
    before they are multiplied.
    """
    probs = logits.float().softmax(-1)
    half = bins.shape[0] // 2
    difference = probs[..., half + 1 :] - probs[..., :half].flip(-1)
    return (difference * bins[half + 1 :]).sum(-1)


def twohot_loss(
    logits: Float[Tensor, "*batch bins"],
    value: Float[Tensor, "*batch"],
    bins: Float[Tensor, "bins"],
    other: Float[Tensor, "*batch"] | None = None,
    other_scale: float = 1.0,
) -> Float[Tensor, "*batch"]:
    """Return the cross-entropy, in nats, to the two-hot encoding of `value` (raw units; no gradient into it).

    Weights are linear in the raw value between its two neighbouring bins; values beyond the ends are clamped.
    If `other` is given, `other_scale` times the cross-entropy to it is added; both share one softmax.
    """
    index, weight = _twohot(value, bins)
    if other is not None:
        other_index, other_weight = _twohot(other, bins)
        index = torch.cat([index, other_index], -1)
        weight = torch.cat([weight, other_scale * other_weight], -1)
    return -(weight * logits.float().log_softmax(-1).gather(-1, index)).sum(-1)


def _twohot(value: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of the bins below and above each value, (..., 2), and their weights."""
    value = value.detach().float().clamp(bins[0], bins[-1]).contiguous().unsqueeze(-1)
    above = torch.searchsorted(bins, value).clamp(1, bins.shape[0] - 1)
    low, high = bins[above - 1], bins[above]
    weight = (value - low) / (high - low)
    return torch.cat([above - 1, above], -1), torch.cat([1.0 - weight, weight], -1)


@dataclass(frozen=True, slots=True)
class CategoricalPolicy:
    """A discrete policy; actions are one-hot vectors."""

    log_probs: Float[Tensor, "*batch actions"]

    @staticmethod
    def stack(policies: "list[CategoricalPolicy]") -> "CategoricalPolicy":
        """Return policies of one shape as one, along a new first axis."""
        return CategoricalPolicy(torch.stack([policy.log_probs for policy in policies]))

    def sample(self, noise: Float[Tensor, "*batch actions"]) -> Float[Tensor, "*batch actions"]:
        """Return a one-hot action without gradient."""
        return sample_onehot(self.log_probs.exp(), noise)

    def log_prob(self, action: Float[Tensor, "*batch actions"]) -> Float[Tensor, "*batch"]:
        """Return the log-probability of one-hot actions, in nats."""
        return (self.log_probs * action).sum(-1)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Return the entropy in nats."""
        return categorical_entropy(self.log_probs)


@dataclass(frozen=True, slots=True)
class NormalPolicy:
    """A continuous policy: a diagonal normal, not squashed; the environment clips what it gets."""

    mean: Float[Tensor, "*batch actions"]
    std: Float[Tensor, "*batch actions"]

    @staticmethod
    def stack(policies: "list[NormalPolicy]") -> "NormalPolicy":
        """Return policies of one shape as one, along a new first axis."""
        return NormalPolicy(
            torch.stack([policy.mean for policy in policies]),
            torch.stack([policy.std for policy in policies]),
        )

    def sample(self, noise: Float[Tensor, "*batch actions"]) -> Float[Tensor, "*batch actions"]:
        """Return an action without gradient."""
        return (self.mean + self.std * noise).detach()

    def log_prob(self, action: Float[Tensor, "*batch actions"]) -> Float[Tensor, "*batch"]:
        """Return the log-density, in nats, summed over dimensions."""
        return torch.distributions.Normal(self.mean, self.std, validate_args=False).log_prob(action).sum(-1)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Return the differential entropy in nats, summed over dimensions."""
        return torch.distributions.Normal(self.mean, self.std, validate_args=False).entropy().sum(-1)


Policy = CategoricalPolicy | NormalPolicy

_SHORT_AXIS = 64


def _softmax(x: Tensor) -> Tensor:
    """Return softmax over the last axis.

    On a CPU torch's kernel for a short last axis is slow (512 x 32 x 8: 2.7 ms); across rows it takes 0.4 ms.
    """
    if x.device.type != "cpu" or x.shape[-1] > _SHORT_AXIS:
        return x.softmax(-1)
    return x.movedim(-1, 0).contiguous().softmax(0).movedim(0, -1).contiguous()


def bounded_normal(
    mean: Float[Tensor, "*batch actions"], std: Float[Tensor, "*batch actions"]
) -> NormalPolicy:
    """Return from raw outputs the normal with mean tanh(mean), std MIN + (MAX - MIN) sigmoid(std + 2)."""
    return NormalPolicy(mean.float().tanh(), MIN_STD + (MAX_STD - MIN_STD) * torch.sigmoid(std.float() + 2.0))
