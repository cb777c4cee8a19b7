"""Convert new records to fields of the arena, and check them before old records are evicted."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..utils.timestep import ActionSpec, ArraySpec, TimeStep
from .batch import EpisodeRecords
from .plan import OBSERVATION_PREFIX

Forms = dict[str, tuple[tuple[int, ...], np.dtype]]
"""Shape and dtype of arrays, by their names in the arena."""

_FLAGS = ("is_first", "is_last", "is_terminal")


def step_forms(observation: Mapping[str, ArraySpec], action: ActionSpec, num_envs: int) -> Forms:
    """Return the forms of one record of every environment, latents apart."""
    flags = dict.fromkeys(_FLAGS, ((num_envs,), np.dtype(np.bool_)))
    return _forms(observation, action, num_envs) | flags


def step_fields(step: TimeStep, action: np.ndarray, forms: Forms) -> dict[str, np.ndarray]:
    """Return the fields of one record of every environment.

    Raises:
        ValueError: If one has another shape or dtype than in `forms`.
    """
    given = {OBSERVATION_PREFIX + key: values for key, values in step.observation.items()}
    given |= {
        "action": action,
        "reward": step.reward,
        "is_first": step.is_first,
        "is_last": step.is_last,
        "is_terminal": step.is_terminal,
    }
    _require(given, forms, "a step")
    given["action"] = np.where(step.is_last[:, None], np.float32(0), action)
    return given


def tensors(fields: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return arrays as tensors; read-only ones are copied, since torch refuses them."""
    return {
        name: torch.from_numpy(values if values.flags.carray else np.require(values, requirements=["C", "W"]))
        for name, values in fields.items()
    }


def episode_fields(
    episode: EpisodeRecords, observation: Mapping[str, ArraySpec], action: ActionSpec
) -> dict[str, np.ndarray]:
    """Return the fields of all records of an episode by their names in the arena, latents apart.

    Raises:
        ValueError: If there is no record, or a field has other rows than the specs say, one per record.
    """
    length = len(episode.reward)
    if length == 0:
        raise ValueError("an episode has at least 1 record")
    given = {OBSERVATION_PREFIX + key: values for key, values in episode.observation.items()}
    given |= {"action": episode.action, "reward": episode.reward}
    _require(given, _forms(observation, action, length), "an episode")
    is_last = np.arange(length) == length - 1
    return given | {
        "action": np.where(is_last[:, None], np.float32(0), episode.action),
        "is_first": np.arange(length) == 0,
        "is_last": is_last,
        "is_terminal": is_last & bool(episode.is_terminal),
    }


def _forms(observation: Mapping[str, ArraySpec], action: ActionSpec, count: int) -> Forms:
    """Return the forms of observations, actions and rewards of `count` records."""
    single = np.dtype(np.float32)
    forms = {
        OBSERVATION_PREFIX + key: ((count, *spec.shape), spec.dtype) for key, spec in observation.items()
    }
    return forms | {"action": ((count, action.size), single), "reward": ((count,), single)}


def _require(given: Mapping[str, np.ndarray], expected: Forms, owner: str) -> None:
    found = {name: (values.shape, values.dtype) for name, values in given.items()}
    if found != expected:
        wrong = [n for n in sorted(found.keys() | expected.keys()) if found.get(n) != expected.get(n)]
        raise ValueError(
            "; ".join(f"{name} of {owner} is {found.get(name)}, not {expected.get(name)}" for name in wrong)
        )
