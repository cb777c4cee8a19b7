"""Convert between Gymnasium spaces and the model's form: RGB bytes, float vectors, actions in [-1, 1]."""

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
_WIDEST_RANGE = 65_535  # of the values of pixels; wider bounds, such as the largest float, mean none
_UINT8 = np.dtype(np.uint8)  # a dtype compares with a dtype ten times faster than with a type
_BYTES = (0.0, 255.0)  # bounds of pixels that are stored as they are
_LEAST_SIDE = 32  # in pixels, of an image that is not of bytes; smaller arrays may be boards or tables


def observation_space(space: spaces.Space, image_size: int) -> spaces.Dict:
    """Return the space of observations as delivered: a flat dict of uint8 images and float vectors.

    Raises:
        UserError: If a part of `space` is neither a Box nor Discrete, or a Box without numbers.
    """
    parts = parts_of(space)
    return spaces.Dict({key: part_space(key, parts, image_size) for key in parts})


def full_range(space: spaces.Space) -> spaces.Space:
    """Return a space whose uint8 parts have the bounds 0 to 255, so that bytes of images are not scaled."""
    if isinstance(space, spaces.Dict):  # in the same order: a plain dict would be sorted
        return spaces.Dict([(key, full_range(part)) for key, part in space.items()])
    is_bytes = isinstance(space, spaces.Box) and space.dtype == _UINT8
    return spaces.Box(0, 255, space.shape, np.uint8) if is_bytes else space


def convert_observation(space: spaces.Space, observation: Any, image_size: int) -> dict[str, NDArray]:
    """Return one observation of `space` as an element of `observation_space(space, image_size)`.

    Raises:
        EnvironmentFailed: If it is no element of `space`: of another shape, or an image out of its bounds.
    """
    parts = parts_of(space)
    values = observation if isinstance(space, spaces.Dict) else dict.fromkeys(parts, observation)
    return {key: _convert_part(key, part, values[key], image_size) for key, part in parts.items()}


def notices(space: spaces.Space) -> tuple[str, ...]:
    """Return one sentence for each conversion of observations of `space` that may surprise a user."""
    parts = (
        {f"`{key}` ": part for key, part in space.items()} if isinstance(space, spaces.Dict) else {"": space}
    )
    return tuple(name + text for name, part in parts.items() if (text := _notice(part)))


def action_spec(space: spaces.Space) -> ActionSpec:
    """Return the actions as the model sees them.

    Raises:
        UserError: If `space` is not Discrete, MultiDiscrete, MultiBinary or a Box of floats, or is empty.
    """
    if space.shape is not None and 0 in space.shape:
        raise UserError(
            f"has actions in {space}, of shape {space.shape}, so an action would have no numbers. "
            "Give the action space at least one number."
        )
    if parts := _choices(space):
        return ActionSpec(size=sum(parts), is_discrete=True, parts=parts if len(parts) > 1 else ())
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return ActionSpec(size=int(np.prod(space.shape)), is_discrete=False)
    takes = "Reverie acts in Discrete, MultiDiscrete, MultiBinary and in Box of floats only"
    repair = "Offer one of them, and make in step() what you need of it."
    raise UserError(f"has actions in {space}; {takes}. {repair}")


def convert_action(space: spaces.Space, action: NDArray[np.float32]) -> Any:
    """Return the element of `space` meant by `action` (A,).

    One-hot -> the choice, counted from the start of the space, of each block its own. [-1, 1] -> [low, high]
    of every bounded dimension; a dimension without both bounds takes the number in [-1, 1], within the bound
    that it has.
    """
    if isinstance(space, spaces.Discrete):
        return space.start + action.argmax()
    if parts := _choices(space):
        blocks = np.split(action, np.cumsum(parts)[:-1])
        chosen = np.array([block.argmax() for block in blocks]).reshape(space.shape)
        start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
        return (chosen + start).astype(space.dtype)
    assert isinstance(space, spaces.Box)
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    is_bounded = (space.bounded_below & space.bounded_above).reshape(-1)
    least, most = np.where(is_bounded, low, -1), np.where(is_bounded, high, 1)
    # `np.clip` would take twice as long as two ufuncs. The difference of the bounds may overflow.
    part = (np.minimum(np.maximum(action, -1), 1).astype(np.float64) + 1) / 2
    value = np.minimum(np.maximum((1 - part) * least + part * most, low), high)
    return value.reshape(space.shape).astype(space.dtype)


def require_observation(space: spaces.Space, observation: Any, name: str) -> None:
    """Refuse what is no observation of `space`, that of the environment called `name`.

    Raises:
        UserError: Naming the key, shape and dtype that were given, and those of the environment.
    """
    repair = "Pass what reset() or step() of one environment returned, without a batch axis."
    parts = parts_of(space)
    if isinstance(space, spaces.Dict):
        keys = list(observation) if isinstance(observation, Mapping) else None
        if keys is None or set(keys) != set(parts):
            found = f"is {type(observation).__name__}" if keys is None else f"has the keys {sorted(keys)}"
            raise UserError(f"The observation {found}; {name} gives a dict of {sorted(parts)}. {repair}")
    for key, part in parts.items():
        value = observation[key] if isinstance(space, spaces.Dict) else observation
        what = f"The observation `{key}`" if isinstance(space, spaces.Dict) else "The observation"
        wanted = f"{part}" if isinstance(part, spaces.Discrete) else f"{part.dtype} of shape {part.shape}"
        if not _fits(part, value):
            raise UserError(f"{what} is {_described(value)}; {name} gives {wanted}. {repair}")


def _fits(space: spaces.Space, value: Any) -> bool:
    """Whether a value has the shape of a part, and numbers that its dtype can stand for."""
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
    """Return a value as numbers; None for what is none: a dict, or rows of different lengths."""
    try:
        array = as_array(value)
    except ValueError:
        return None
    return array if np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_ else None


def as_array(value: Any) -> NDArray:
    """Return a value as an array, without a copy if possible.

    A torch tensor may have a gradient and any device and dtype: narrow floats, which NumPy may not have,
    become float32.
    """
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_floating_point() and value.element_size() < 4:
            value = value.float()
    return np.asarray(value)


def _choices(space: spaces.Space) -> tuple[int, ...]:
    """Return the number of values of each choice that an action makes; () for other spaces."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(space.nvec.reshape(-1).tolist())
    return (2,) * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else ()


def parts_of(space: spaces.Space) -> dict[str, spaces.Space]:
    """Return the parts of a Dict, or any other space as the only part, under the name of its kind."""
    if isinstance(space, spaces.Dict):
        return space.spaces
    return {"image" if _is_image(space) else "vector": space}


def _is_image(space: spaces.Space) -> bool:
    """Whether this is a picture of bytes, or of other numbers between two bounds that all pixels share.

    Its shape is (H, W), (H, W, C) or (C, H, W) with C = 1 or 3.
    """
    if not isinstance(space, spaces.Box) or not 2 <= len(space.shape) <= 3:
        return False
    sides = space.shape
    if len(sides) == 3:
        if sides[2] not in _CHANNELS and sides[0] not in _CHANNELS:
            return False
        sides = sides[1:] if _is_channels_first(space) else sides[:2]
    if space.dtype == _UINT8 or min(sides) < _LEAST_SIDE:
        return space.dtype == _UINT8
    low, high = _bounds(space)
    is_common = bool((space.low == low).all() and (space.high == high).all())
    return is_common and low < high and high - low <= _WIDEST_RANGE


def _is_channels_first(image: spaces.Box) -> bool:
    return len(image.shape) == 3 and image.shape[2] not in _CHANNELS


def _bounds(image: spaces.Box) -> tuple[float, float]:
    """Return the values of black and white: the least and the largest bound of all pixels."""
    low, high = float(image.low.item(0)), float(image.high.item(0))
    if (low, high) == _BYTES or image.dtype != _UINT8:  # other types are images only if all bounds agree
        return low, high
    low, high = float(image.low.min()), float(image.high.max())
    return (low, high) if low < high else _BYTES


def _notice(space: spaces.Space) -> str | None:
    if not isinstance(space, spaces.Box):
        return None
    is_image, changes = _is_image(space), []
    if is_image and _is_channels_first(space):
        changes.append("its channels moved behind")
    if is_image and (space.dtype != _UINT8 or _bounds(space) != _BYTES):
        changes.append("{:g} to {:g} stored as bytes 0 to 255".format(*_bounds(space)))
    is_grid = _is_small_grid(space)
    if not changes and not is_grid and (is_image or len(space.shape) < 3):
        return None
    form = "an image"
    if not is_image:
        form = f"{count_text(int(np.prod(space.shape)), 'number')}, not as an image"
    text = f"{space} is taken as {', '.join([form, ' and '.join(changes)] if changes else [form])}"
    if not is_grid:
        return text
    shape = ", ".join(map(str, space.shape))
    return (
        f"{text}. If its n values are codes, such as objects or pieces, one-hot encode them:"
        f" np.eye(n, dtype=np.float32)[grid], declared as Box(0, 1, ({shape}, n), np.float32)"
    )


def _is_small_grid(space: spaces.Box) -> bool:
    """Whether this may be a board or a map of codes: whole numbers in few rows and columns."""
    sides = space.shape[1:] if _is_channels_first(space) else space.shape[:2]
    return len(space.shape) in (2, 3) and space.dtype.kind in "iu" and min(sides) < _LEAST_SIDE


def part_space(key: str, parts: Mapping[str, spaces.Space], image_size: int) -> spaces.Box:
    """Return the space of one of the `parts` of an observation as delivered.

    Raises:
        UserError: If it has no such form; the message suggests a change that works.
    """
    seen = _seen(parts[key], image_size)
    if seen is None:
        raise UserError(
            f"has an observation `{key}` in {parts[key]}; Reverie takes Box, Discrete and a flat Dict of"
            " them, and images as (height, width), and with 1 or 3 channels in front or behind. "
            f"{_repair(key, parts)}"
        )
    return seen


def _seen(space: spaces.Space, image_size: int) -> spaces.Box | None:
    if isinstance(space, spaces.Discrete):
        return spaces.Box(0, 1, (int(space.n),), np.float32)
    if not isinstance(space, spaces.Box) or 0 in space.shape:
        return None
    if _is_image(space):
        return spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
    if space.dtype == _UINT8 and len(space.shape) >= 3:
        return None
    return spaces.Box(-np.inf, np.inf, (int(np.prod(space.shape)),), _float_dtype(space).type)


def _repair(key: str, parts: Mapping[str, spaces.Space]) -> str:
    """Return how to change an observation of `parts` whose part `key` cannot be used."""
    space = parts[key]
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return "Give every part a key of its own in one Dict."
    if isinstance(space, spaces.Box) and 0 not in space.shape:
        return "Give every picture a key of its own in a Dict."
    if kept := [name for name, part in parts.items() if _seen(part, _LEAST_SIDE) is not None]:
        return f"Leave it out: gymnasium.wrappers.FilterObservation(env, {kept})."
    if space.is_np_flattenable and not isinstance(space, spaces.Box):
        return "Wrap it: gymnasium.wrappers.FlattenObservation(env)."
    return "Declare it as a Box with at least one number."


def _convert_part(key: str, space: spaces.Space, value: Any, image_size: int) -> NDArray:
    array = as_array(value)
    if isinstance(space, spaces.Discrete):
        choice = array.item() - space.start if array.size == 1 else -1
        if not 0 <= choice < space.n or choice % 1:
            raise EnvironmentFailed(f"its observation `{key}` is {value!r}, which is not in {space}")
        return (np.arange(space.n) == choice).astype(np.float32)
    assert isinstance(space, spaces.Box)
    is_image = _is_image(space)
    if array.shape != space.shape and (is_image or array.size != np.prod(space.shape)):
        raise EnvironmentFailed(
            f"its observation `{key}` has the shape {array.shape}, but its space says {space.shape}"
        )
    if is_image:
        return _resize(_bytes_of(key, space, array), image_size)
    vector = array.reshape(-1).astype(_float_dtype(space))
    if not np.isfinite(vector).all():  # it would stay in the replay
        raise EnvironmentFailed(f"its observation `{key}` has values that are not finite")
    return vector


def _bytes_of(key: str, space: spaces.Box, image: NDArray) -> NDArray[np.uint8]:
    """Return an image of `space` as bytes of shape (H, W) or (H, W, C)."""
    is_bytes = space.dtype == _UINT8
    if is_bytes and image.dtype.kind not in "iu":
        raise EnvironmentFailed(
            f"its observation `{key}` is of type {image.dtype}, but its space says {space.dtype}"
        )
    low, high = _bounds(space)
    if (low, high) != _BYTES or not is_bytes or image.dtype != _UINT8:
        slack = (high - low) / 510  # half a byte
        if not low - slack <= image.min() <= image.max() <= high + slack:  # not a number is refused, too
            raise EnvironmentFailed(
                f"its observation `{key}` has values from {image.min():g} to {image.max():g}, but its space "
                f"says {low:g} to {high:g}"
            )
        image = np.rint((image.astype(np.float32) - low) * (255 / (high - low))).clip(0, 255).astype(np.uint8)
    return np.moveaxis(image, 0, 2) if _is_channels_first(space) else image


def _float_dtype(space: spaces.Space) -> np.dtype:
    """Floats of at most 4 bytes keep their type; everything else becomes float32."""
    dtype = np.dtype(space.dtype)
    return dtype if dtype.kind == "f" and dtype.itemsize <= 4 else np.dtype(np.float32)


def _resize(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return (size, size, 3); BOX averages whole areas: an object of one pixel fades but never vanishes."""
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] == 1:
        image = image.repeat(3, axis=2)
    if image.shape == (size, size, 3):
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BOX))
