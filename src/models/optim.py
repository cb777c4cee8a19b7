"""The LaProp optimizer with adaptive gradient clipping."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from .config import OptimizerConfig


def falling(value: float, least: float, start: int, updates: Tensor) -> float | Tensor:
    """Return `value`, decayed by start / updates after `start` updates. With `start` 0, it does not decay.

    The decay stops at `least`. Smaller values are not decayed. A decayed value is 0-d float32 on the device.
    """
    if not start:
        return value
    return (value * (start / updates.clamp(min=start))).clamp(min=min(value, least))


class LaProp(Optimizer):
    """Adaptive gradient clipping per tensor, RMS normalization, then momentum: m(normalized(clipped(g))).

        g  <- g / max(1, |g| / (agc_clip * max(agc_floor, |p|)))          per tensor, L2 norms
        v  <- beta2 v + (1 - beta2) g^2
        m  <- beta1 m + (1 - beta1) g / (sqrt(v / (1 - beta2^t)) + eps)
        p  <- p - lr_t m / (1 - beta1^t)

    All state, including counters, is on the parameters' device, so a step never waits for the host. Moments
    are float32. |g| < `TINY` counts as zero, because g^2 would underflow and g would only be divided by eps.

    Non-finite gradients have no effect, because the device then sets the gradients and the step size to 0 and
    the decay rates to 1.

    There is one parameter group, in a fixed order. A scheduler may change its `lr`, the undecayed step size.

    Raises:
        ValueError: If there are no parameters or several groups.

    Reference: Ziyin et al. 2020, arXiv:2002.04839 (LaProp); Brock et al. 2021, arXiv:2102.06171 (clipping);
    `embodied/jax/opt.py` in danijar/dreamerv3 at e3f0224.
    """

    TINY = 4e-18
    """Smaller gradients count as zero: (1 - beta2) g^2 would be below 1.2e-38, float32's smallest normal."""

    def __init__(self, parameters: Iterable[Parameter], config: OptimizerConfig) -> None:
        super().__init__(parameters, {"lr": config.learning_rate})
        self.config = config
        for parameter in self.parameters:
            self.state[parameter] = {
                name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("mean_square", "momentum")
            }
        device = self.parameters[0].device
        self.updates = torch.zeros((), dtype=torch.float32, device=device)
        self.beta1_power = torch.ones((), dtype=torch.float64, device=device)
        self.beta2_power = self.beta1_power.clone()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the only parameter group."""
        if self.param_groups:
            raise ValueError("LaProp supports only one parameter group.")
        # `Optimizer.add_param_group` imports torch._dynamo. This adds seconds in each process with an agent.
        self.param_groups.append({**self.defaults, **param_group})

    @property
    def parameters(self) -> list[Tensor]:
        """The tensors that are trained."""
        return self.param_groups[0]["params"]

    @property
    def mean_square(self) -> list[Tensor]:
        """The mean square v of each parameter's gradients."""
        return [self.state[parameter]["mean_square"] for parameter in self.parameters]

    @property
    def momentum(self) -> list[Tensor]:
        """The momentum m of each parameter."""
        return [self.state[parameter]["momentum"] for parameter in self.parameters]

    @torch.no_grad()
    def gradient_norms(self) -> Tensor:
        """Return the L2 norms, (P,) float32: 0 without `grad`, not finite if entries exceed about 1e19."""
        zero = torch.zeros_like(self.updates)
        return torch.stack(torch._foreach_norm([zero if p.grad is None else p.grad for p in self.parameters]))

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]: metrics in the place of the loss
        self,
        closure: Callable[[], Any] | None = None,
        norms: Tensor | None = None,
        finite: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Apply one update and free each parameter's `grad`. A missing `grad` counts as zeros.

        Args:
            closure: Called first to compute the gradients. Its result is ignored.
            norms: The `gradient_norms`, if they are known.
            finite: 0-d bool on the parameters' device. If false, parameters and state do not change.
                Defaults to whether all `gradient_norms` are finite.

        Returns:
            0-d float32 tensors: `gradient_norm` and `clipped_norm`, the L2 norm over all tensors before and
            after clipping, and `learning_rate`, the step size of this update.
        """
        if closure is not None:
            with torch.enable_grad():
                closure()
        norms = self.gradient_norms() if norms is None else norms
        finite = norms.isfinite().all() if finite is None else finite
        # Compiled, each norm would be copied separately.
        parameter_norms = torch.stack(torch._foreach_norm(self.parameters))
        c = self.config
        gradients: list[Tensor] = []
        for parameter in self.parameters:
            gradient = parameter.grad
            gradients.append(torch.zeros_like(parameter) if gradient is None else gradient.float())
            parameter.grad = None
        beta1_power, beta2_power = self.beta1_power * c.beta1, self.beta2_power * c.beta2
        learning_rate = self.learning_rate()
        step_size = torch.where(finite, learning_rate / (1.0 - beta1_power).float(), 0.0)
        correction = (1.0 / (1.0 - beta2_power)).float()
        tensors = self.parameters, gradients, self.mean_square, self.momentum
        before, after = self.change(*tensors, norms, parameter_norms, step_size, correction, finite)
        self.beta1_power.copy_(torch.where(finite, beta1_power, self.beta1_power))
        self.beta2_power.copy_(torch.where(finite, beta2_power, self.beta2_power))
        self.updates.add_(finite)
        return {"gradient_norm": before, "clipped_norm": after, "learning_rate": learning_rate}

    def learning_rate(self) -> Tensor:
        """Return the next update's step size, 0-d float32 on the parameters' device."""
        c, updates, rate = self.config, self.updates, self.param_groups[0]["lr"]
        share = (updates / c.warmup_updates).clamp(max=1.0) if c.warmup_updates else torch.ones_like(updates)
        return falling(rate, c.least_learning_rate, c.decay_from, updates) * share

    def change(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        mean_square: list[Tensor],
        momentum: list[Tensor],
        norms: Tensor,
        parameter_norms: Tensor,
        step_size: Tensor,
        correction: Tensor,
        finite: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Update parameters, moments and gradients in place. This is a compilable function of tensors.

        `norms` and `parameter_norms` are L2 norms, (P,) float32. `step_size` and `correction` are
        lr_t / (1 - beta1^t) and 1 / (1 - beta2^t), 0-d float32. Returns the L2 norms over all gradients
        before and after clipping.
        """
        c = self.config
        limits = parameter_norms.clamp(min=c.agc_floor) * c.agc_clip
        shrink = 1.0 / (norms / limits).clamp(min=1.0)
        torch._foreach_mul_(gradients, list(shrink.unbind()))
        is_blocked = ~finite
        for gradient in gradients:
            gradient.masked_fill_((gradient.abs() < self.TINY).logical_or_(is_blocked), 0.0)
        torch._foreach_mul_(mean_square, torch.where(finite, c.beta2, 1.0))
        torch._foreach_addcmul_(mean_square, gradients, gradients, 1.0 - c.beta2)
        scale = torch._foreach_mul(mean_square, correction)
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, c.eps)
        torch._foreach_div_(gradients, scale)
        share = torch.where(finite, 1.0 - c.beta1, 0.0)
        # `torch._foreach_lerp_` would copy `share` to the host.
        for average, gradient in zip(momentum, gradients, strict=True):
            average.lerp_(gradient, share)
        torch._foreach_add_(parameters, torch._foreach_mul(momentum, -step_size))
        return norms.square().sum().sqrt(), (norms * shrink).square().sum().sqrt()

    def state_dict(self) -> dict[str, Any]:
        """Return all state tensors without copying them."""
        return {
            "mean_square": self.mean_square,
            "momentum": self.momentum,
            "updates": self.updates,
            "beta1_power": self.beta1_power,
            "beta2_power": self.beta2_power,
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a saved state of the same parameters into the existing tensors."""
        for name, own in self.state_dict().items():
            for target, source in zip(tree_leaves(own), tree_leaves(state_dict[name]), strict=True):
                target.copy_(source)
