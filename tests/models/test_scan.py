"""The gradients of a scan match plain autograd's. Autograd adds up a product for each step."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from reverie.models import RSSM, LatentState
from reverie.models.scan import Scan

from .plain import BATCH, random_state
from .test_rssm import inputs, latent_noise
from .tiny import ACTION_SIZE, TINY, TOKEN_SIZE, perturb, tiny_rssm

STEPS = 7
LARGEST = 1e-12


class PlainScan(Scan):
    """The same scan with plain autograd: every step uses the weights themselves."""

    def __init__(self, weights: Sequence[Tensor], *args: Any, **keywords: Any) -> None:
        with torch.no_grad():
            super().__init__(weights, *args, **keywords)
        self.weights = list(weights)
        shared = [x.clone() for x in keywords["added"]]
        self._added = [
            [x] * STEPS if x.dim() < weight.dim() else x.unbind()
            for x, weight in zip(shared, weights, strict=True)
        ]


def gradients(monkeypatch: pytest.MonkeyPatch, kind: type[Scan]) -> dict[str, Tensor]:
    """Return the gradients of all parameters and inputs of a window in which episodes start, in float64."""
    torch.manual_seed(0)
    monkeypatch.setattr("reverie.models.rssm.Scan", kind)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    rssm = RSSM(ACTION_SIZE, TOKEN_SIZE, TINY).double()
    perturb(rssm)
    tokens, action, first = inputs(time=STEPS)
    first[0, 3] = first[2, 5] = first[1, 0] = True
    start = random_state()
    leaves = {"tokens": tokens, "action": action, "deter": start.deter, "stoch": start.stoch}
    leaves = {name: x.double().requires_grad_() for name, x in leaves.items()}
    tokens, action, *state = leaves.values()
    observed = rssm.observe(tokens, action, first, latent_noise(STEPS).double(), state=LatentState(*state))
    posterior = observed.posterior
    outputs = (posterior.deter, posterior.stoch, observed.posterior_logits, observed.prior_logits)
    torch.stack([(x * torch.randn_like(x)).sum() for x in outputs]).sum().backward()
    return {name: x.grad for name, x in (*rssm.named_parameters(), *leaves.items()) if x.grad is not None}


def test_the_gradients_are_those_of_plain_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, plain = gradients(monkeypatch, Scan), gradients(monkeypatch, PlainScan)
    assert ours.keys() == plain.keys() and {"tokens", "core.mix_weight", "posterior_in.weight"} < ours.keys()
    for name, expected in plain.items():
        assert float(expected.norm()) > 0.0, name
        assert float((ours[name] - expected).norm() / expected.norm()) < LARGEST, name
        assert ours[name].stride() == expected.stride() or name in ("tokens", "action"), name


def test_operators_of_a_gpu_have_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    of_cpu = gradients(monkeypatch, Scan)
    for module in ("rssm", "layers"):
        monkeypatch.setattr(f"reverie.models.{module}.runs_on_cpu", lambda _: False)
    # The constant of the CPU's norm is rounded to float32.
    for name, gradient in gradients(monkeypatch, Scan).items():
        assert float((gradient - of_cpu[name]).norm() / of_cpu[name].norm()) < 1e-8, name


def test_a_window_of_one_step_has_the_gradients_of_the_first_step_of_a_longer_window() -> None:
    rssm = tiny_rssm()
    window, noise, start = inputs(time=3), latent_noise(3), random_state()
    found = []
    for time in (1, 3):
        given = [x[:, :time] for x in (*window, noise)]
        observed = rssm.observe(*given, state=start)
        losses = [observed.posterior.deter, observed.posterior.stoch.square(), observed.posterior_logits]
        total = torch.stack([x[:, 0].cos().sum() for x in losses]).sum()
        found.append(torch.autograd.grad(total, [*rssm.core.parameters(), rssm.posterior_in.weight]))
    for ours, expected in zip(*found, strict=True):
        assert float(expected.norm()) > 0.0
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_a_weight_is_multiplied_once_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    products = {}
    for kind in (Scan, PlainScan):
        with torch.profiler.profile() as profile:
            gradients(monkeypatch, kind)
        counts = {event.key: event.count for event in profile.key_averages()}
        products[kind] = counts["aten::mm"] + counts["aten::bmm"]
    # Of five maps, plain autograd makes a weight gradient at each step.
    assert products[PlainScan] - products[Scan] == 5 * (STEPS - 1)


def test_without_gradients_nothing_is_kept() -> None:
    weight, bias = torch.randn(3, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
    with torch.no_grad():
        scan = Scan([weight], [bias], [torch.ones(2)], steps=2, rows=BATCH, dtype=torch.bfloat16)
        x = torch.randn(BATCH, 3)
        scan.keep([x])
    assert scan.weights[0].dtype is torch.bfloat16 and not any(scan._inputs)
    assert [added.shape for [added], _ in scan.steps()] == [(2,)] * 2
