"""Between the spaces of Gymnasium and what the model takes: RGB bytes, float vectors, actions in [-1, 1]."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from PIL import Image

from ..utils.errors import UserError
from ..utils.records import ActionSpec


def observation_space(space: spaces.Space, image_size: int) -> spaces.Dict:
    """Return the space of observations as delivered: a flat dict of uint8 images and float vectors.

    Raises:
        UserError: If a part of `space` is neither a Box nor Discrete.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _part_space(key, part, image_size) for key, part in space.items()})
    name = "image" if _is_image(space) else "vector"
    return spaces.Dict({name: _part_space(name, space, image_size)})


def convert_observation(space: spaces.Space, observation: Any, image_size: int) -> dict[str, NDArray]:
    """Return one observation of `space` as an element of `observation_space(space, image_size)`."""
    if isinstance(space, spaces.Dict):
        return {key: _convert_part(part, observation[key], image_size) for key, part in space.items()}
    name = "image" if _is_image(space) else "vector"
    return {name: _convert_part(space, observation, image_size)}


def action_spec(space: spaces.Space) -> ActionSpec:
    """Return the actions as the model sees them.

    Raises:
        UserError: If `space` is neither Discrete nor a Box of floats.
    """
    if isinstance(space, spaces.Discrete):
        return ActionSpec(size=int(space.n), is_discrete=True)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return ActionSpec(size=int(np.prod(space.shape)), is_discrete=False)
    raise UserError(f"has actions in {space}; Reverie acts in Discrete and in Box of floats only.")


def convert_action(space: spaces.Space, action: NDArray[np.float32]) -> Any:
    """Return the element of `space` meant by `action` (A,).

    One-hot -> the choice, counted from the start of the space. [-1, 1] -> [low, high] of every bounded
    dimension; a dimension without both bounds takes the number as it is.
    """
    if isinstance(space, spaces.Discrete):
        return space.start + action.argmax()
    assert isinstance(space, spaces.Box)
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    is_bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(is_bounded, low, -1), np.where(is_bounded, high, 1)
    scaled = low + (np.clip(action, -1, 1) + 1) / 2 * (high - low)
    value = np.where(is_bounded, np.clip(scaled, low, high), action)
    return value.reshape(space.shape).astype(space.dtype)


def _is_image(space: spaces.Space) -> bool:
    """Whether this is (H, W), (H, W, 1) or (H, W, 3) of bytes."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


def _part_space(key: str, space: spaces.Space, image_size: int) -> spaces.Box:
    if _is_image(space):
        return spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
    if isinstance(space, spaces.Discrete):
        return spaces.Box(0, 1, (int(space.n),), np.float32)
    if isinstance(space, spaces.Box) and (space.dtype != np.uint8 or len(space.shape) < 3):
        return spaces.Box(-np.inf, np.inf, (int(np.prod(space.shape)),), _float_dtype(space).type)
    raise UserError(
        f"has an observation `{key}` in {space}; Reverie takes Box, Discrete and a flat Dict of them, and"
        f" images of bytes as (height, width), (height, width, 1) or (height, width, 3)."
    )


def _convert_part(space: spaces.Space, value: Any, image_size: int) -> NDArray:
    if _is_image(space):
        return _resize(np.asarray(value), image_size)
    if isinstance(space, spaces.Discrete):
        return (np.arange(space.n) + space.start == value).astype(np.float32)
    return np.asarray(value).reshape(-1).astype(_float_dtype(space))


def _float_dtype(space: spaces.Space) -> np.dtype:
    """Floats of at most 4 bytes keep their type; everything else becomes float32."""
    dtype = np.dtype(space.dtype)
    return dtype if np.issubdtype(dtype, np.floating) and dtype.itemsize <= 4 else np.dtype(np.float32)


def _resize(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return (size, size, 3); BOX averages whole areas: an object of one pixel fades but never vanishes."""
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] == 1:
        image = image.repeat(3, axis=2)
    if image.shape == (size, size, 3):
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BOX))
