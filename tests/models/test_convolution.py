"""Convolution stages compared with slow forms that index every pixel."""

import pytest
import torch
from torch.nn import functional as F

from reverie.models import convolution, meta_stands_for
from reverie.models.convolution import ChannelNormSiLU, Downsample, Upsample, in_groups

from .tiny import perturb


def test_a_strided_downsample_pads_one_pixel_before_and_two_after() -> None:
    layer = Downsample(2, 3, strided=True)
    perturb(layer)
    x = torch.randn(1, 2, 6, 8)
    expected = layer.bias.view(1, 3, 1, 1).expand(1, 3, 3, 4).clone()
    for i in range(3):
        for j in range(4):
            for k in range(5):
                for m in range(5):
                    row, column = 2 * i + k - 1, 2 * j + m - 1
                    if 0 <= row < 6 and 0 <= column < 8:
                        expected[:, :, i, j] += x[:, :, row, column] @ layer.weight[:, :, k, m].t()
    torch.testing.assert_close(layer(x), expected)


def test_a_pooled_downsample_takes_the_largest_of_four_centred_convolutions() -> None:
    layer = Downsample(2, 3, strided=False)
    perturb(layer)
    x = torch.randn(1, 2, 6, 8)
    full = F.conv2d(F.pad(x, (2, 2, 2, 2)), layer.weight, layer.bias)
    assert full.shape[-2:] == x.shape[-2:]
    expected = full.unflatten(-1, (4, 2)).unflatten(-3, (3, 2)).amax((-3, -1))
    torch.testing.assert_close(layer(x), expected)


def test_a_strided_upsample_stuffs_zeros_between_odd_pixels_and_convolves_with_the_flipped_kernel() -> None:
    layer = Upsample(2, 3, strided=True)
    perturb(layer)
    x = torch.randn(2, 2, 4, 5)
    stuffed = torch.zeros(2, 2, 8, 10)
    stuffed[:, :, 1::2, 1::2] = x
    kernel = layer.weight.transpose(0, 1).flip(2, 3)  # (in, out, h, w) -> (out, in, h, w)
    torch.testing.assert_close(layer(x), F.conv2d(stuffed, kernel, layer.bias, padding=2))


def test_a_nearest_upsample_repeats_each_pixel_before_a_centred_convolution() -> None:
    layer = Upsample(2, 3, strided=False)
    perturb(layer)
    x = torch.randn(2, 2, 4, 5)
    repeated = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(layer(x), F.conv2d(repeated, layer.weight, layer.bias, padding=2))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_images_are_normalised_over_channels_at_each_pixel(memory_format: torch.memory_format) -> None:
    norm = ChannelNormSiLU(6)
    perturb(norm)
    x = torch.randn(2, 6, 3, 4).to(memory_format=memory_format)
    expected = x / (x.square().mean(1, keepdim=True) + 1e-4).sqrt() * norm.scale.view(1, 6, 1, 1)
    torch.testing.assert_close(norm(x), F.silu(expected))
    ours, theirs = (torch.autograd.grad(y.square().sum(), norm.scale)[0] for y in (norm(x), F.silu(expected)))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("strided", [False, True])
def test_small_kernels_have_the_gradients_of_the_large_one(strided: bool) -> None:
    layer = Upsample(2, 3, strided)
    perturb(layer)
    x, weight = torch.randn(2, 2, 4, 5, requires_grad=True), torch.randn(2, 3, 8, 10)
    if strided:
        plain = F.conv_transpose2d(x, layer.weight, layer.bias, stride=2, padding=1)[..., :-1, :-1]
    else:
        repeated = F.interpolate(x, scale_factor=2, mode="nearest")
        plain = F.conv2d(repeated, layer.weight, layer.bias, padding=2)
    inputs = (x, layer.weight, layer.bias)
    theirs = torch.autograd.grad((plain * weight).sum(), inputs)
    for a, b in zip(torch.autograd.grad((layer(x) * weight).sum(), inputs), theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("images", [1, 6, 7])
def test_images_in_groups_give_the_same_result_as_all_together(
    images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Downsample(2, 3, strided=False)
    perturb(layer)
    x, seen = torch.randn(images, 2, 6, 8, requires_grad=True), []

    def convolve(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return layer(x)

    monkeypatch.setattr(convolution, "GROUP_BYTES", 3 * 4 * 100)
    grouped, whole = in_groups(convolve, x, floats_per_image=100), layer(x)
    assert sum(seen) == images and max(seen) <= 3 and seen == sorted(seen, reverse=True)
    torch.testing.assert_close(grouped, whole)
    ours, theirs = (torch.autograd.grad(y.square().sum(), (x, layer.weight)) for y in (grouped, whole))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    with meta_stands_for("cuda"):
        in_groups(
            lambda x: seen.append(len(x)) or x, torch.empty(images, 2, device="meta"), floats_per_image=100
        )
    assert seen[-1] == images


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(("channels", "out"), [(3, 8), (12, 5)])
def test_a_gpu_convolves_blocks_of_pixels_with_the_same_result(
    strided: bool, channels: int, out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [kind(channels, out, strided).double() for kind in (Downsample, Upsample)]
    inputs = [parameter for stage in stages for parameter in stage.parameters()]
    for parameter in inputs:
        # Many pooled pixels are then equal, and the gradient is that of the first.
        torch.nn.init.uniform_(parameter, -1.5, 1.5).data.round_()
    x = torch.randint(2, (2, channels, 6, 8)).double().requires_grad_()
    found = []
    for is_cpu in (True, False):
        monkeypatch.setattr(convolution, "runs_on_cpu", lambda _, is_cpu=is_cpu: is_cpu)
        outputs = [stage(x) for stage in stages]
        total = torch.stack(
            [y.mul(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in outputs]
        ).sum()
        found.append([*outputs, *torch.autograd.grad(total, [x, *inputs])])
    for ours, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-12, rtol=1e-12)
