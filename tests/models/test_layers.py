"""Layers compared with explicit formulas, and their initial values."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from reverie.models import layers
from reverie.models.convolution import Downsample, Upsample
from reverie.models.heads import Actor
from reverie.models.layers import MLP, BlockLinear, Linear, NormSiLU, converted_weights, norm_silu
from reverie.models.rssm import BlockGRU
from reverie.utils.timestep import ActionSpec

from .tiny import TINY, perturb

# Half the bound of a truncated normal with standard deviation 1.
WIDE_SIGMA = 1 / 0.87962566


def norm_then_silu(x: Tensor, scale: Tensor) -> Tensor:
    x = x.double()
    x = x / (x.square().mean(-1, keepdim=True) + 1e-4).sqrt() * scale.double()
    return x * x.sigmoid()


@pytest.mark.parametrize("grad", [True, False], ids=["with gradient", "without"])
@pytest.mark.parametrize("size", [1.0, 1e-3, 0.0])
def test_norm_and_silu_equal_their_formula_with_the_epsilon_inside_the_root(size: float, grad: bool) -> None:
    norm = NormSiLU(24)
    perturb(norm)
    # The mean must not be subtracted.
    x = torch.randn(5, 24) * size + size
    with torch.set_grad_enabled(grad):
        y = norm(x)
    torch.testing.assert_close(y.double(), norm_then_silu(x, norm.scale), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [1.0, 1e-3, 0.0])
@pytest.mark.parametrize("shape", [(24,), (5, 24), (2, 3, 4, 24)])
def test_the_gradient_of_norm_and_silu_is_that_of_their_formula(shape: tuple[int, ...], size: float) -> None:
    norm = NormSiLU(24)
    perturb(norm)
    x = (torch.randn(shape) * size + size).requires_grad_()
    weight = torch.randn(shape)
    ours = torch.autograd.grad((norm(x) * weight).sum(), (x, norm.scale))
    theirs = torch.autograd.grad((norm_then_silu(x, norm.scale) * weight).sum(), (x, norm.scale))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("is_cpu", [True, False], ids=["CPU", "GPU"])
@pytest.mark.parametrize("rows", [5, 6_000], ids=["few rows", "more rows than the cache holds"])
def test_a_copy_of_the_scale_for_each_row_gives_the_same_gradients(
    rows: int, is_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "runs_on_cpu", lambda _: is_cpu)
    x, scale = torch.randn(rows, 24, requires_grad=True), torch.rand(24, requires_grad=True)
    weight = torch.randn(rows, 24)
    found = []
    for given in (scale, scale.expand(rows, -1)):
        y = norm_silu(x, given)
        found.append((y, *torch.autograd.grad((y * weight).sum(), (x, scale))))
    for ours, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_a_layer_without_a_bias_is_converted() -> None:
    layer = torch.nn.Linear(3, 2, bias=False)
    with torch.autocast("cpu", torch.bfloat16), converted_weights(layer):
        assert layer.weight.dtype is torch.bfloat16 and layer.bias is None
    assert layer.weight.dtype is torch.float32


def test_converted_weights_are_replaced_even_after_an_error() -> None:
    mlp = MLP(4, 3, 2)
    before = dict(mlp.named_parameters())
    with (
        pytest.raises(RuntimeError, match="stop"),
        torch.autocast("cpu", torch.bfloat16),
        converted_weights(mlp),
    ):
        for name, parameter in mlp.named_parameters():
            is_linear = not name.endswith("scale")
            assert parameter.dtype is (torch.bfloat16 if is_linear else torch.float32), name
            assert parameter.requires_grad is not is_linear, name
        raise RuntimeError("stop")
    after = dict(mlp.named_parameters())
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: torch.randn(5, 24), id="rows"),
        pytest.param(lambda: torch.randn(7, 5, 24).transpose(0, 1), id="axes in another order"),
        pytest.param(lambda: torch.randn(2, 24, 3, 5).permute(0, 2, 3, 1), id="channels first"),
        pytest.param(lambda: torch.randn(6_000, 24), id="more rows than the cache holds"),
    ],
)
def test_norms_of_bfloat16_equal_their_formula_rounded(make: Callable[[], Tensor]) -> None:
    norm = NormSiLU(24)
    perturb(norm)
    x = make().bfloat16().requires_grad_()
    y, expected = norm(x), norm_then_silu(x, norm.scale)
    torch.testing.assert_close(y, expected.bfloat16(), rtol=2**-7, atol=1e-3)
    weight = torch.randn(x.shape).bfloat16()
    ours = torch.autograd.grad((y * weight).sum(), (x, norm.scale))
    exact = torch.autograd.grad((expected * weight).sum(), (x, norm.scale))
    assert [each.dtype for each in ours] == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(ours[0], exact[0], rtol=2**-7, atol=1e-2)
    torch.testing.assert_close(ours[1], exact[1], rtol=1e-3, atol=1e-3)


def test_norm_and_silu_keep_one_tensor_of_their_size_for_the_backward_pass() -> None:
    norm, x = NormSiLU(24), torch.randn(5, 24, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        norm(x)
    assert sorted(t.numel() for t in kept) == [5, 24, 5 * 24]


def test_the_norm_computes_in_single_precision_whatever_it_is_given() -> None:
    norm = NormSiLU(24)
    perturb(norm)
    x = (torch.randn(5, 24) * 3).bfloat16()
    y = norm(x).detach()
    assert y.dtype == torch.bfloat16
    scaled = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-4).sqrt() * norm.scale.double()
    # There is one rounding before the SiLU and one after it.
    expected = torch.nn.functional.silu(scaled.detach().bfloat16())
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=1e-3)


def assert_truncated_normal(weight: Tensor, std: float) -> None:
    weight = weight.detach()
    assert float(weight.std()) == pytest.approx(std, rel=0.03)
    assert abs(float(weight.mean())) < 0.05 * std
    bound = 2 * WIDE_SIGMA * std
    assert 0.97 * bound < float(weight.abs().max()) <= bound * (1 + 1e-5)


def test_linear_weights_are_truncated_normal_with_the_spread_of_their_fan_in() -> None:
    layer = Linear(256, 128)
    assert_truncated_normal(layer.weight, 1 / 16)
    assert int(layer.bias.count_nonzero()) == 0
    assert_truncated_normal(Linear(256, 128, outscale=0.01).weight, 0.01 / 16)
    assert int(Linear(256, 128, outscale=0.0).weight.count_nonzero()) == 0


def test_the_fan_in_of_block_layers_is_the_width_of_all_blocks_together() -> None:
    layer = BlockLinear(256, 768, 8)
    assert_truncated_normal(layer.weight, 1 / 16)
    assert int(layer.bias.count_nonzero()) == 0
    core = BlockGRU(6, TINY)
    full_width = TINY.deter + TINY.blocks * 3 * TINY.hidden
    assert_truncated_normal(core.mix_weight, 1 / math.sqrt(full_width))
    assert_truncated_normal(core.gates.weight, 1 / math.sqrt(TINY.deter))


@pytest.mark.parametrize("strided", [False, True])
def test_the_fan_in_of_convolutions_is_kernel_area_times_input_channels(strided: bool) -> None:
    for layer in (Downsample(12, 20, strided), Upsample(12, 20, strided)):
        assert_truncated_normal(layer.weight, 1 / math.sqrt(5 * 5 * 12))
        assert int(layer.bias.count_nonzero()) == 0


def test_the_actor_starts_with_small_outputs() -> None:
    actor = Actor(40, ActionSpec(512, False), 0.0, TINY)
    for head in (actor.out, actor.std_out):
        assert_truncated_normal(head.weight, 0.01 / math.sqrt(TINY.units))


def test_a_block_layer_is_a_block_diagonal_matrix() -> None:
    layer = BlockLinear(12, 20, 4)
    perturb(layer)
    x = torch.randn(3, 12)
    dense = torch.block_diag(*layer.weight)
    assert dense.shape == (12, 20)
    torch.testing.assert_close(layer(x), x @ dense + layer.bias)


def test_an_mlp_is_linear_then_norm_then_silu() -> None:
    mlp = MLP(5, 8, 2)
    perturb(mlp)
    x = hidden = torch.randn(3, 5)
    for linear, norm in ((mlp[0], mlp[1]), (mlp[2], mlp[3])):
        assert isinstance(linear, Linear) and isinstance(norm, NormSiLU)
        hidden = norm_then_silu(hidden.double() @ linear.weight.double().t() + linear.bias, norm.scale)
    torch.testing.assert_close(mlp(x).double(), hidden, atol=1e-6, rtol=1e-5)
