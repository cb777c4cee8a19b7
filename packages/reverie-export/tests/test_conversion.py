"""Tensors are converted to the same numbers as the environments' arrays."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from reverie_export import conversion
from reverie_export.conversion import convert_action, convert_part, resized_axes

from reverie.envs import spaces as reference
from reverie.utils.errors import UserError

IMAGES = [(1, 500), (3, 64), (48, 128), (63, 64), (65, 7), (80, 70), (210, 160), (333, 47)]


@pytest.mark.parametrize(("height", "width"), IMAGES)
def test_bytes_are_resized_exactly_like_by_pillow(height: int, width: int) -> None:
    space = spaces.Box(0, 255, (height, width, 3), np.uint8)
    image = np.random.default_rng(0).integers(256, size=space.shape, dtype=np.uint8)
    expected = reference.convert_part("image", space, image, 64)
    assert expected.shape == (64, 64, 3)
    found = convert_part(space, torch.from_numpy(image), 64, resized_axes(space, 64))
    assert np.array_equal(found.numpy(), expected)


def test_an_unknown_resizing_of_pillow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_ONE", 1)
    with pytest.raises(UserError, match=r"in an unknown way\. Resize the image in the environment"):
        resized_axes(spaces.Box(0, 255, (80, 70, 3), np.uint8), 64)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (80, 70), np.uint8),
        spaces.Box(0, 255, (70, 80, 1), np.uint8),
        spaces.Box(0, 255, (1, 70, 80), np.uint8),
        spaces.Box(10, 200, (64, 64, 3), np.uint8),
        spaces.Box(-1, 1, (3, 64, 64), np.float64),
        spaces.Box(0, 1, (40, 64), np.float16),
        spaces.Box(0, 1000, (64, 64, 1), np.int32),
        spaces.Box(-np.inf, np.inf, (2, 3, 4), np.float64),
        spaces.Box(0, 9, (4,), np.int64),
        spaces.Discrete(5, start=-2),
    ],
    ids=str,
)
def test_a_part_of_an_observation_is_converted_equally(space: spaces.Space) -> None:
    space.seed(0)
    [key] = reference.parts_of(space)
    for _ in range(5):
        value = space.sample()
        expected = reference.convert_part(key, space, value, 64)
        axes = resized_axes(space, 64) if key == "image" else (1, 0)
        found = convert_part(space, torch.from_numpy(np.asarray(value)), 64, axes).numpy()
        # A custom encoder depends on the dtype, too.
        assert found.dtype == expected.dtype and np.array_equal(found, expected)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=3),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[0, 1], [2, 3]])),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, (2, 2), np.float32),
        spaces.Box(np.array([0, -np.inf, -3.0]), np.array([np.inf, 0.5, 7.0]), dtype=np.float64),
        spaces.Box(-3e38, 3e38, (2,), np.float32),
    ],
    ids=str,
)
def test_an_action_is_converted_equally(space: spaces.Space) -> None:
    generator = torch.Generator().manual_seed(0)
    size = reference.action_spec(space).size
    for _ in range(20):
        action = torch.randn(size, generator=generator)
        expected = np.asarray(reference.convert_action(space, action.numpy()))
        found = convert_action(space, action).numpy()
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
