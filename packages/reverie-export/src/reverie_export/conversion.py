"""Conversions between an environment's spaces and the model's formats, as functions of tensors.

They return the same numbers as `reverie.envs.spaces` (NumPy and Pillow), and torch.onnx can export them.
"""

import math

import numpy as np
import PIL
import torch
from gymnasium import spaces
from PIL import Image
from torch import Tensor

from reverie.envs.spaces import action_bounds, choices, image_bounds, is_channels_first, is_image_space
from reverie.utils.errors import UserError

# Pillow's fixed-point format for resizing bytes (PRECISION_BITS in src/libImaging/Resample.c).
_ONE = 2**22


def tensor_dtype(dtype: np.dtype) -> torch.dtype:
    """Return torch's dtype for a NumPy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def convert_part(
    space: spaces.Space, value: Tensor, image_size: int, axes: tuple[int, int] = (1, 0)
) -> Tensor:
    """Convert one part of an observation to the model's format.

    Args:
        space: The part's space, Box or Discrete.
        value: An element of `space` in its shape and dtype.
        image_size: Height and width, in pixels, of the model's images.
        axes: The result of `resized_axes` for an image.

    Returns:
        An image (image_size, image_size, 3) uint8, a one-hot vector (n,) float32, or a flat vector.
    """
    if isinstance(space, spaces.Discrete):
        return (torch.arange(int(space.n)) == value - int(space.start)).float()
    assert isinstance(space, spaces.Box)
    if not is_image_space(space):
        return value.reshape(-1).to(torch.float16 if value.dtype == torch.float16 else torch.float32)
    low, high = image_bounds(space)
    image = value
    if (low, high) != (0, 255) or space.dtype != np.uint8:
        image = ((value.float() - low) * (255 / (high - low))).round().clamp(0, 255)
    if image.dim() == 2:
        image = image.unsqueeze(-1)
    if is_channels_first(space):
        image = image.permute(1, 2, 0)
    for axis in axes:
        image = _resize(image, axis, image_size)
    return image.to(torch.uint8).expand(-1, -1, 3)


def resized_axes(space: spaces.Space, image_size: int) -> tuple[int, int]:
    """Return the axes of a part's (H, W, C) image in the order in which Pillow resizes them.

    Pillow rounds between the axes. Its order depends on the sides and on its version, so this function
    compares both orders with the installed Pillow.

    Raises:
        UserError: If neither order returns the same image as Pillow.
    """
    assert isinstance(space, spaces.Box)
    height, width = space.shape[1:] if is_channels_first(space) else space.shape[:2]
    image = np.random.default_rng(0).integers(256, size=(height, width, 3), dtype=np.uint8)
    sides = image_size, image_size
    expected = np.asarray(Image.fromarray(image).resize(sides, Image.Resampling.BOX))
    for axes in ((1, 0), (0, 1)):
        resized = torch.from_numpy(image)
        for axis in axes:
            resized = _resize(resized, axis, image_size)
        if np.array_equal(resized.numpy(), expected):
            return axes
    raise UserError(
        f"Pillow {PIL.__version__} resizes {space} in an unknown way. Resize the image in the environment."
    )


def _resize(image: Tensor, axis: int, size: int) -> Tensor:
    """Resize one axis of an (H, W, C) image like Pillow's BOX filter for bytes."""
    if image.shape[axis] == size:
        return image
    taps, weights = box_taps(image.shape[axis], size)
    shape = [1] * axis + [*weights.shape] + [1] * (2 - axis)
    # Products and sums of these integers are exact in float64.
    pixels = image.double().index_select(axis, torch.from_numpy(taps).flatten())
    sums = (pixels.unflatten(axis, taps.shape) * torch.from_numpy(weights).reshape(shape)).sum(axis + 1)
    return ((sums + _ONE / 2) / _ONE).floor().clamp(0, 255)


def box_taps(length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the source pixels of each of `size` pixels and their weights, both (size, taps).

    Weights are integers as float64, in units of 2**-22. Unused taps have weight 0.

    Reference: `precompute_coeffs` and `normalize_coeffs_8bpc` in `src/libImaging/Resample.c` of Pillow 13.
    """
    scale = length / size
    wide = max(scale, 1.0)
    count = math.ceil(0.5 * wide) * 2 + 1
    centers = (np.arange(size) + 0.5) * scale
    first = np.maximum((centers - 0.5 * wide + 0.5).astype(np.int64), 0)[:, None]
    last = np.minimum((centers + 0.5 * wide + 0.5).astype(np.int64), length)[:, None]
    taps = first + np.arange(count)
    offset = (taps - centers[:, None] + 0.5) * (1.0 / wide)
    inside = (taps < last) & (offset > -0.5) & (offset <= 0.5)
    weights = inside / inside.sum(1, keepdims=True)
    return np.minimum(taps, length - 1), np.floor(0.5 + weights * _ONE)


def convert_action(space: spaces.Space, action: Tensor) -> Tensor:
    """Convert a model action (A,) float32 to an element of `space` in its shape and dtype."""
    if isinstance(space, spaces.Discrete):
        return action.argmax() + int(space.start)
    assert space.shape is not None and space.dtype is not None
    dtype = tensor_dtype(space.dtype)
    if parts := choices(space):
        chosen = torch.stack([block.argmax() for block in action.split(parts)]).reshape(space.shape)
        start = space.start if isinstance(space, spaces.MultiDiscrete) else np.zeros(space.shape, np.int64)
        return (chosen + torch.from_numpy(start)).to(dtype)
    assert isinstance(space, spaces.Box)
    low, high, least, most = (torch.from_numpy(bound) for bound in action_bounds(space))
    part = (action.clamp(-1, 1).double() + 1) / 2
    value = torch.minimum(torch.maximum((1 - part) * least + part * most, low), high)
    return value.reshape(space.shape).to(dtype)
