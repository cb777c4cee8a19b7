"""Artificial episodes for tests, and their comparison."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reverie.buffers import EpisodeRecords
from reverie.episodes import EpisodeSpec
from reverie.utils.timestep import ActionSpec, ArraySpec

CATCH = EpisodeSpec({"image": ArraySpec((4, 4, 3), np.dtype(np.uint8))}, ActionSpec(3, True))


def any_values(chance: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> NDArray[Any]:
    """Return values of all kinds that a dtype supports, except infinities."""
    if dtype.kind == "b":
        return chance.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return chance.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return (chance.standard_normal(shape) * 1000).astype(dtype)


def episode(
    spec: EpisodeSpec, length: int, is_terminal: bool = True, seed: int = 0, dtype: type = np.float32
) -> EpisodeRecords:
    """Return an episode of `length` records."""
    chance = np.random.default_rng(seed)
    size = spec.action.size
    if spec.action.is_discrete:
        parts = spec.action.parts or (size,)
        blocks = [np.eye(part, dtype=np.float32)[chance.integers(0, part, length)] for part in parts]
        action = np.concatenate(blocks, axis=1)
    else:
        action = chance.uniform(-1, 1, (length, size)).astype(np.float32)
    action[-1] = 0
    reward = chance.standard_normal(length).astype(dtype)
    reward[0] = 0
    return EpisodeRecords(
        observation={
            key: any_values(chance, (length, *part.shape), part.dtype)
            for key, part in spec.observation.items()
        },
        action=action,
        reward=reward,
        is_terminal=is_terminal,
    )


def plain(episodes: Sequence[EpisodeRecords]) -> list[dict[str, Any]]:
    """Return all fields of episodes, bit for bit, as comparable values."""
    return [
        {
            "is_terminal": each.is_terminal,
            **{
                name: (values.dtype.str, values.shape, values.tobytes())
                for name, values in {**each.observation, "a": each.action, "r": each.reward}.items()
            },
        }
        for each in episodes
    ]
