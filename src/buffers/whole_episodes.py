"""A whole episode as the fields of the arena, checked before any record has to go for it."""

import numpy as np

from ..utils.records import ActionSpec, ArraySpec
from .batch import EpisodeRecords
from .plan import OBSERVATION_PREFIX


def episode_fields(
    episode: EpisodeRecords, observation: dict[str, ArraySpec], action: ActionSpec
) -> dict[str, np.ndarray]:
    """Return the fields of all records of an episode by their names in the arena, latents apart.

    Raises:
        ValueError: If there is no record, or a field has not one row a record of the given shape and dtype.
    """
    length = len(episode.reward)
    if length == 0:
        raise ValueError("an episode has at least 1 record")
    given = {OBSERVATION_PREFIX + key: values for key, values in episode.observation.items()}
    given |= {"action": episode.action, "reward": episode.reward}
    single = np.dtype(np.float32)
    expected = {
        OBSERVATION_PREFIX + key: ((length, *spec.shape), spec.dtype) for key, spec in observation.items()
    }
    expected |= {"action": ((length, action.size), single), "reward": ((length,), single)}
    found = {name: (values.shape, values.dtype) for name, values in given.items()}
    if found != expected:
        wrong = [n for n in sorted(found.keys() | expected.keys()) if found.get(n) != expected.get(n)]
        raise ValueError(
            "; ".join(
                f"{name} of an episode is {found.get(name)}, not {expected.get(name)}" for name in wrong
            )
        )
    is_last = np.arange(length) == length - 1
    return given | {
        "action": np.where(is_last[:, None], np.float32(0), episode.action),
        "is_first": np.arange(length) == 0,
        "is_last": is_last,
        "is_terminal": is_last & episode.is_terminal,
    }
