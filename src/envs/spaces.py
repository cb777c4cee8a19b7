"""Conversion between Gymnasium spaces and model formats: RGB bytes, float vectors, actions in [-1, 1]."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from PIL import Image

from ..utils.errors import UserError
from ..utils.timestep import ActionSpec
from ..utils.units import count_text
from .backend import EnvironmentFailed

_CHANNELS = (1, 3)
# Wider ranges of values, e.g. float32's full range, do not indicate pixels.
_WIDEST_RANGE = 65_535
# Comparing two dtypes is ten times faster than comparing a dtype with a type.
_UINT8 = np.dtype(np.uint8)
_BYTES = (0.0, 255.0)
# Minimum side, in pixels, of images that are not uint8. Smaller arrays may be game boards or tables.
_LEAST_SIDE = 32


def observation_space(space: spaces.Space, image_size: int) -> spaces.Dict:
    """Return the space of converted observations, a flat dict of uint8 images and float vectors.

    Raises:
        UserError: If a part of `space` is neither Box nor Discrete, or is an empty Box.
    """
    parts = parts_of(space)
    return spaces.Dict({key: part_space(key, parts, image_size) for key in parts})


def full_range(space: spaces.Space) -> spaces.Space:
    """Return the space with bounds 0 and 255 for all uint8 parts, so that images are not scaled."""
    if isinstance(space, spaces.Dict):
        # Pairs preserve the order of keys, whereas Dict would sort a plain dict.
        return spaces.Dict([(key, full_range(part)) for key, part in space.items()])
    is_bytes = isinstance(space, spaces.Box) and space.dtype == _UINT8
    return spaces.Box(0, 255, space.shape, np.uint8) if is_bytes else space


def convert_observation(space: spaces.Space, observation: Any, image_size: int) -> dict[str, NDArray]:
    """Convert one observation of `space` to an element of `observation_space(space, image_size)`.

    Raises:
        EnvironmentFailed: If the observation is not in `space`, e.g. because of its shape or bounds.
    """
    parts = parts_of(space)
    values = observation if isinstance(space, spaces.Dict) else dict.fromkeys(parts, observation)
    return {key: convert_part(key, part, values[key], image_size) for key, part in parts.items()}


def notices(space: spaces.Space) -> tuple[str, ...]:
    """Return one sentence for each conversion of observations in `space` that may be unexpected."""
    parts = (
        {f"`{key}` ": part for key, part in space.items()} if isinstance(space, spaces.Dict) else {"": space}
    )
    return tuple(name + text for name, part in parts.items() if (text := _notice(part)))


def action_spec(space: spaces.Space) -> ActionSpec:
    """Return the model's action spec for an action space.

    Raises:
        UserError: If `space` is empty, or is not Discrete, MultiDiscrete, MultiBinary or a Box of floats.
    """
    if space.shape is not None and 0 in space.shape:
        raise UserError(
            f"has actions in {space}, an empty space of shape {space.shape}. "
            "Declare an action space with at least one number."
        )
    if parts := choices(space):
        return ActionSpec(size=sum(parts), is_discrete=True, parts=parts if len(parts) > 1 else ())
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return ActionSpec(size=int(np.prod(space.shape)), is_discrete=False)
    takes = "Reverie supports only Discrete, MultiDiscrete, MultiBinary and Box of floats"
    repair = "Declare one of them, and convert the action in step()."
    raise UserError(f"has actions in {space}; {takes}. {repair}")


def convert_action(space: spaces.Space, action: NDArray[np.float32]) -> Any:
    """Convert a model action (A,) to an element of `space`.

    One-hot blocks become the chosen values, counted from the start of the space. Numbers in [-1, 1] are
    scaled to [low, high] in every bounded dimension. If a bound is missing, the number in [-1, 1] is used
    directly and clipped to the other bound, if any.
    """
    if isinstance(space, spaces.Discrete):
        return space.start + action.argmax()
    if parts := choices(space):
        blocks = np.split(action, np.cumsum(parts)[:-1])
        chosen = np.array([block.argmax() for block in blocks]).reshape(space.shape)
        start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
        return (chosen + start).astype(space.dtype)
    assert isinstance(space, spaces.Box)
    low, high, least, most = action_bounds(space)
    # Two ufuncs are twice as fast as `np.clip`. The formula avoids high - low, because it may overflow.
    part = (np.minimum(np.maximum(action, -1), 1).astype(np.float64) + 1) / 2
    value = np.minimum(np.maximum((1 - part) * least + part * most, low), high)
    return value.reshape(space.shape).astype(space.dtype)


def require_observation(space: spaces.Space, observation: Any, name: str) -> None:
    """Check that a value is an observation of `space`, the space of the environment called `name`.

    Raises:
        UserError: If the check fails. The message gives the actual and expected key, shape and dtype.
    """
    repair = "Pass an observation from reset() or step() of one environment, without a batch axis."
    parts = parts_of(space)
    if isinstance(space, spaces.Dict):
        keys = list(observation) if isinstance(observation, Mapping) else None
        if keys is None or set(keys) != set(parts):
            found = f"is {type(observation).__name__}" if keys is None else f"has the keys {sorted(keys)}"
            raise UserError(f"The observation {found}; {name} returns a dict of {sorted(parts)}. {repair}")
    for key, part in parts.items():
        value = observation[key] if isinstance(space, spaces.Dict) else observation
        what = f"The observation `{key}`" if isinstance(space, spaces.Dict) else "The observation"
        wanted = f"{part}" if isinstance(part, spaces.Discrete) else f"{part.dtype} of shape {part.shape}"
        if not _fits(part, value):
            raise UserError(f"{what} is {_described(value)}; {name} returns {wanted}. {repair}")


def _fits(space: spaces.Space, value: Any) -> bool:
    """Return whether a value has a part's shape, and a dtype that can be cast to the part's."""
    array = _array(value)
    if array is None:
        return False
    if not isinstance(space, spaces.Box):
        return array.size == 1 and space.contains(array.item())
    both_whole = np.issubdtype(array.dtype, np.integer) and np.issubdtype(space.dtype, np.integer)
    return array.shape == space.shape and (both_whole or np.can_cast(array.dtype, space.dtype, "same_kind"))


def _described(value: Any) -> str:
    if isinstance(value, int | np.integer):
        return str(value)
    array = _array(value)
    return type(value).__name__ if array is None else f"{array.dtype} of shape {array.shape}"


def _array(value: Any) -> NDArray | None:
    """Return a value as a numeric array, or `None`, e.g. for a dict or rows of different lengths."""
    try:
        array = as_array(value)
    except ValueError:
        return None
    return array if np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_ else None


def as_array(value: Any) -> NDArray:
    """Return a value as an array, without copying if possible.

    Tensors may have a graph and be on any device. Narrow floats, some of which NumPy lacks, become float32.
    """
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_floating_point() and value.element_size() < 4:
            value = value.float()
    return np.asarray(value)


def action_bounds(space: spaces.Box) -> tuple[NDArray[np.float64], ...]:
    """Return the flat bounds `low` and `high` of actions, and the values `least` and `most` for -1 and 1."""
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    is_bounded = (space.bounded_below & space.bounded_above).reshape(-1)
    return low, high, np.where(is_bounded, low, -1), np.where(is_bounded, high, 1)


def choices(space: spaces.Space) -> tuple[int, ...]:
    """Return the number of values of each discrete choice in an action, or () for any other space."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(space.nvec.reshape(-1).tolist())
    return (2,) * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else ()


def parts_of(space: spaces.Space) -> dict[str, spaces.Space]:
    """Return the parts of a Dict. Any other space becomes a single part named `image` or `vector`."""
    if isinstance(space, spaces.Dict):
        return space.spaces
    return {"image" if is_image_space(space) else "vector": space}


def is_image_space(space: spaces.Space) -> bool:
    """Return whether an (H, W), (H, W, C) or (C, H, W) Box (C = 1 or 3) is uint8 or has uniform bounds."""
    if not isinstance(space, spaces.Box) or not 2 <= len(space.shape) <= 3:
        return False
    sides = space.shape
    if len(sides) == 3:
        if sides[2] not in _CHANNELS and sides[0] not in _CHANNELS:
            return False
        sides = sides[1:] if is_channels_first(space) else sides[:2]
    if space.dtype == _UINT8 or min(sides) < _LEAST_SIDE:
        return space.dtype == _UINT8
    low, high = image_bounds(space)
    is_common = bool((space.low == low).all() and (space.high == high).all())
    return is_common and low < high and high - low <= _WIDEST_RANGE


def is_channels_first(image: spaces.Box) -> bool:
    """Return whether an image is (C, H, W)."""
    return len(image.shape) == 3 and image.shape[2] not in _CHANNELS


def image_bounds(image: spaces.Box) -> tuple[float, float]:
    """Return the values of black and white: the smallest and largest bounds of all pixels."""
    low, high = float(image.low.item(0)), float(image.high.item(0))
    # All pixels of an image that is not uint8 have the same bounds.
    if (low, high) == _BYTES or image.dtype != _UINT8:
        return low, high
    low, high = float(image.low.min()), float(image.high.max())
    return (low, high) if low < high else _BYTES


def _notice(space: spaces.Space) -> str | None:
    if not isinstance(space, spaces.Box):
        return None
    is_image, changes = is_image_space(space), []
    if is_image and is_channels_first(space):
        changes.append("its channels moved to the end")
    if is_image and (space.dtype != _UINT8 or image_bounds(space) != _BYTES):
        changes.append("its values from {:g} to {:g} scaled to bytes 0 to 255".format(*image_bounds(space)))
    is_grid = _is_small_grid(space)
    if not changes and not is_grid and (is_image or len(space.shape) < 3):
        return None
    form = "an image"
    if not is_image:
        form = f"{count_text(int(np.prod(space.shape)), 'number')}, not as an image"
    text = f"{space} is treated as {' with '.join([form, ' and '.join(changes)] if changes else [form])}"
    if not is_grid:
        return text
    shape = ", ".join(map(str, space.shape))
    return (
        f"{text}. If its n values are categories, such as objects or pieces, one-hot encode them:"
        f" np.eye(n, dtype=np.float32)[grid], declared as Box(0, 1, ({shape}, n), np.float32)"
    )


def _is_small_grid(space: spaces.Box) -> bool:
    """Return whether this may be a board or a map of codes: integers in a few rows and columns."""
    sides = space.shape[1:] if is_channels_first(space) else space.shape[:2]
    return len(space.shape) in (2, 3) and space.dtype.kind in "iu" and min(sides) < _LEAST_SIDE


def part_space(key: str, parts: Mapping[str, spaces.Space], image_size: int) -> spaces.Box:
    """Return the space of one of the `parts` of an observation after conversion.

    Raises:
        UserError: If the part is not supported. The message suggests a fix.
    """
    if not isinstance(key, str):
        raise UserError(f"has an observation with the key {key!r}, which must be a string. Rename it.")
    seen = _seen(parts[key], image_size)
    if seen is None:
        raise UserError(
            f"has an observation `{key}` in {parts[key]}; Reverie supports Box, Discrete and a flat Dict of"
            " them, and images as (height, width), optionally with 1 or 3 channels first or last. "
            f"{_repair(key, parts)}"
        )
    return seen


def _seen(space: spaces.Space, image_size: int) -> spaces.Box | None:
    if isinstance(space, spaces.Discrete):
        return spaces.Box(0, 1, (int(space.n),), np.float32)
    if not isinstance(space, spaces.Box) or 0 in space.shape:
        return None
    if is_image_space(space):
        return spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
    if space.dtype == _UINT8 and len(space.shape) >= 3:
        return None
    return spaces.Box(-np.inf, np.inf, (int(np.prod(space.shape)),), _float_dtype(space).type)


def _repair(key: str, parts: Mapping[str, spaces.Space]) -> str:
    """Return a suggestion for an observation of `parts` with an unsupported part `key`."""
    space = parts[key]
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return "Give every part a separate key in one Dict."
    if isinstance(space, spaces.Box) and 0 not in space.shape:
        return "Give every image a separate key in a Dict."
    if kept := [name for name, part in parts.items() if _seen(part, _LEAST_SIDE) is not None]:
        return f"Omit it: gymnasium.wrappers.FilterObservation(env, {kept})."
    if space.is_np_flattenable and not isinstance(space, spaces.Box):
        return "Wrap it: gymnasium.wrappers.FlattenObservation(env)."
    return "Declare it as a Box with at least one number."


def is_stored_as_is(space: spaces.Space, image_size: int) -> bool:
    """Return whether conversion only changes the shape and dtype of vectors, and nothing of images."""
    if not isinstance(space, spaces.Box):
        return False
    is_kept = space.dtype == _UINT8 and space.shape == (image_size, image_size, 3)
    return not is_image_space(space) or (is_kept and image_bounds(space) == _BYTES)


def convert_part(key: str, space: spaces.Space, value: Any, image_size: int) -> NDArray:
    """Convert one part of an observation. See `convert_observation`."""
    array = as_array(value)
    if isinstance(space, spaces.Discrete):
        choice = array.item() - space.start if array.size == 1 else -1
        if not 0 <= choice < space.n or choice % 1:
            raise EnvironmentFailed(f"its observation `{key}` is {value!r}, which is not in {space}")
        return (np.arange(space.n) == choice).astype(np.float32)
    assert isinstance(space, spaces.Box)
    is_image = is_image_space(space)
    if array.shape != space.shape and (is_image or array.size != np.prod(space.shape)):
        raise EnvironmentFailed(
            f"its observation `{key}` has the shape {array.shape}, but its space has {space.shape}"
        )
    if is_image:
        return _resize(_bytes_of(key, space, array), image_size)
    vector = array.reshape(-1).astype(_float_dtype(space))
    # Non-finite values would be stored in the replay buffer.
    if not np.isfinite(vector).all():
        raise EnvironmentFailed(f"its observation `{key}` has values that are not finite")
    return vector


def _bytes_of(key: str, space: spaces.Box, image: NDArray) -> NDArray[np.uint8]:
    """Convert an image of `space` to uint8 of shape (H, W) or (H, W, C)."""
    is_bytes = space.dtype == _UINT8
    if is_bytes and image.dtype.kind not in "iu":
        raise EnvironmentFailed(
            f"its observation `{key}` has the dtype {image.dtype}, but its space has {space.dtype}"
        )
    low, high = image_bounds(space)
    if (low, high) != _BYTES or not is_bytes or image.dtype != _UINT8:
        # The tolerance is half a byte. The negated comparison also rejects NaN.
        slack = (high - low) / 510
        if not low - slack <= image.min() <= image.max() <= high + slack:
            raise EnvironmentFailed(
                f"its observation `{key}` has values from {image.min():g} to {image.max():g}, but its space "
                f"has the bounds {low:g} to {high:g}"
            )
        image = np.rint((image.astype(np.float32) - low) * (255 / (high - low))).clip(0, 255).astype(np.uint8)
    return np.moveaxis(image, 0, 2) if is_channels_first(space) else image


def _float_dtype(space: spaces.Space) -> np.dtype:
    """Return the space's dtype for floats of at most 4 bytes, and float32 for everything else."""
    dtype = np.dtype(space.dtype)
    return dtype if dtype.kind == "f" and dtype.itemsize <= 4 else np.dtype(np.float32)


def _resize(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Resize to (size, size, 3). BOX averages areas, so that even one-pixel objects stay visible."""
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] == 1:
        image = image.repeat(3, axis=2)
    if image.shape == (size, size, 3):
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BOX))
