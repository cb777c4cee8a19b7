"""Save and read episodes from Python, e.g. from a robot's log."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from ..envs.backend import EnvironmentFailed
from ..envs.spaces import action_spec, as_array, choices, convert_observation
from ..envs.spaces import observation_space as observation_space_of
from ..episodes import Episodes, RawEpisode, append, find_episodes, model_actions, spec_of, to_records
from ..utils.errors import UserError
from ..utils.units import count_text

# Logged actions at a bound may exceed it by rounding.
_ROUNDING = 1e-5


def save_episode(
    folder: str | Path,
    *,
    observations: ArrayLike | Mapping[str, ArrayLike],
    actions: ArrayLike,
    rewards: ArrayLike,
    terminated: bool = False,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
    image_size: int = 64,
) -> Path:
    """Add an episode of n steps to a folder, and return its file.

    Train on the folder with `buffer.prefill=<folder>`. Observations and actions are converted as in an
    environment with these spaces. The folder is created if necessary. A killed program leaves all earlier
    episodes intact, and several processes may save to the same folder.

    Args:
        folder: A new folder, or one that `save_episode` created for the same spaces.
        observations: Array (n + 1, ...) or a dict of them. Row t was seen before action t. The last row was
            seen after the last action.
        actions: Array (n, ...) of actions.
        rewards: Array (n,). Reward t is the result of action t.
        terminated: Whether the episode ended by itself, e.g. in success or failure, so that the value of the
            last observation is 0. `False` means that it was cut off.
        observation_space: Space of one observation. By default, uint8 arrays of 2 or 3 axes are images, and
            all other arrays are vectors.
        action_space: Space of one action. By default, actions are floats in [-1, 1]. Integer actions require
            it.
        image_size: Height and width to which images are resized, as in `env.image_size`.

    Raises:
        UserError: If lengths or shapes do not match, a number is not finite or outside of its space, or the
            folder contains other files or episodes of other spaces, or cannot be written.
    """
    reward, chosen = _numbers("rewards", rewards), _numbers("actions", actions)
    steps = len(reward) if reward.ndim == 1 else 0
    if not steps:
        raise UserError(f"rewards must have the shape (steps,), with at least one step (got {reward.shape}).")
    if not isinstance(terminated, bool | np.bool_):
        raise UserError(f"terminated must be True or False for the whole episode, got {terminated!r}.")
    if len(np.atleast_1d(chosen)) != steps:
        raise UserError(f"actions must have {count_text(steps, 'row')}, like rewards (got {chosen.shape}).")
    seen = _seen(observations, steps)
    space = _inferred_space(seen) if observation_space is None else observation_space
    acting = _inferred_actions(chosen) if action_space is None else action_space
    is_dict = isinstance(space, spaces.Dict)
    if is_dict != isinstance(observations, Mapping) or (is_dict and seen.keys() != space.keys()):
        found = f"are a dict of {', '.join(seen)}" if isinstance(observations, Mapping) else "are one array"
        raise UserError(f"observations {found}, but observation_space={space}. Use the same keys in both.")
    try:
        observation_space_of(space, image_size)
        spec = action_spec(acting)
    except UserError as error:
        raise UserError(f"The episode {error}") from None
    try:
        taken = _model_actions(acting, chosen)
        raw = RawEpisode(
            _converted(space, seen, image_size),
            np.concatenate([taken, np.zeros_like(taken[:1])]),
            np.concatenate([np.zeros(1, np.float32), reward]),
            bool(terminated),
        )
        records = to_records(raw, spec)
    except (ValueError, EnvironmentFailed) as error:
        raise UserError(
            f"The episode cannot be saved: {error}. Correct it, or pass the right space."
        ) from error
    try:
        return append(Path(folder), records, spec_of(records, spec))
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"folder={folder} cannot be written: {reason}. Choose another folder.") from error


def open_episodes(folder: str | Path) -> Episodes:
    """Return the episodes in a folder or file of any supported format, read one at a time.

    Iterate over the result for `EpisodeRecords`. Files are checked and never executed.

    Raises:
        UserError: If the folder has no episodes of a known format, or, while iterating, if a file is damaged.
    """
    return find_episodes(Path(folder), "folder")


def _numbers(name: str, value: Any) -> NDArray:
    try:
        array = as_array(value)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{name} must be an array of numbers (got {type(value).__name__}).")
    return array


def _seen(observations: Any, steps: int) -> dict[str, NDArray]:
    """Return the observations by key. The key of a single array is empty."""
    is_dict = isinstance(observations, Mapping)
    given = observations if is_dict else {"": observations}
    seen = {
        str(key): _numbers(f"observations[{key!r}]" if is_dict else "observations", value)
        for key, value in given.items()
    }
    for key, values in seen.items():
        if len(np.atleast_1d(values)) != steps + 1:
            name = f"observations[{key!r}]" if is_dict else "observations"
            raise UserError(
                f"{name} must have {count_text(steps + 1, 'row')}, one more than actions "
                f"(got {values.shape}). Include the observation after the last action."
            )
    return seen


def _inferred_space(seen: Mapping[str, NDArray]) -> spaces.Space:
    parts: dict[str, spaces.Space] = {key: _inferred(values) for key, values in seen.items()}
    return parts[""] if parts.keys() == {""} else spaces.Dict(parts)


def _inferred(values: NDArray) -> spaces.Box:
    """Return the space of one row: bytes if they may be an image, otherwise numbers without bounds."""
    shape = values.shape[1:]
    if values.dtype == np.uint8 and len(shape) > 1:
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, values.dtype.type if values.dtype.kind == "f" else np.float32)


def _inferred_actions(actions: NDArray) -> spaces.Box:
    if actions.dtype.kind != "f":
        repair = "Pass action_space, e.g. gymnasium.spaces.Discrete(4)"
        raise UserError(f"actions are {actions.dtype}, and their number of choices is unknown. {repair}.")
    return spaces.Box(-1, 1, actions.shape[1:], np.float32)


def _model_actions(space: spaces.Space, actions: NDArray) -> NDArray:
    """Convert actions with `model_actions`, and clip rounding errors.

    Returns:
        Choices counted from 0, (steps,) or (steps, parts), or float32 numbers in [-1, 1], (steps, size).

    Raises:
        ValueError: If an action has another shape than `space`, or is outside of it.
    """
    result, parts = model_actions(space, actions), choices(space)
    if parts:
        is_inside = (result >= 0) & (result < np.reshape(parts, result.shape[1:])) & (result % 1 == 0)
    else:
        is_inside = np.abs(result.astype(np.float32)) <= 1 + _ROUNDING
    if not is_inside.all():
        index = int(np.nonzero(~is_inside)[0][0])
        raise ValueError(f"the action of step {index} is {actions[index]}, which is not in {space}")
    return result.astype(np.int64) if parts else result.astype(np.float32).clip(-1, 1)


def _converted(space: spaces.Space, seen: Mapping[str, NDArray], image_size: int) -> dict[str, NDArray]:
    """Convert all rows as an environment does."""
    is_dict, rows = isinstance(space, spaces.Dict), zip(*seen.values(), strict=True)
    shown = [
        convert_observation(space, dict(zip(seen, row, strict=True)) if is_dict else row[0], image_size)
        for row in rows
    ]
    return {key: np.stack([each[key] for each in shown]) for key in shown[0]}
