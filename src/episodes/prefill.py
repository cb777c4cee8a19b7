"""Fill a new run's replay buffer with episodes from disk."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ..buffers import EpisodeReplayBuffer, ReplaySpec
from ..utils.errors import UserError
from ..utils.timestep import ArraySpec
from ..utils.units import count_text
from .episode import difference, spec_of
from .formats import find_episodes


def prefill(replay: EpisodeReplayBuffer, path: Path, spec: ReplaySpec) -> None:
    """Add all episodes at `path` to an empty replay buffer, distributed over the environments' streams.

    Wider floats are cast to the environment's dtype, and vectors of any shape are flattened as `envs` does.

    Raises:
        UserError: If there are no episodes, they are from a different environment, or they exceed the
            capacity.
    """
    episodes, key = find_episodes(path, "buffer.prefill"), f"buffer.prefill={path}"
    if episodes.action and episodes.action != spec.action:
        found, needed = episodes.action.text, spec.action.text
        repair = "Choose episodes of this environment."
        raise UserError(f"{key} has actions ({found}), but the environment has ({needed}). {repair}")
    count, fitting, total = 0, 0, 0
    for episode in episodes.read(spec.action):
        parts = episode.observation.items()
        fitted = {name: _fit(values, spec.observation.get(name)) for name, values in parts}
        episode = replace(episode, observation=fitted)
        if differs := difference(spec_of(episode, spec.action).observation, spec.observation):
            repair = "in this environment. Choose episodes of this environment."
            raise UserError(f"{key} is from a different environment: its {differs} {repair}")
        count += 1
        total += len(episode.reward)
        if total <= spec.config.capacity:
            replay.add_episode(fitting % spec.num_envs, episode)
            fitting += 1
    if total > spec.config.capacity:
        raise UserError(
            f"{key} has {count_text(count, 'episode')} of {count_text(total, 'record')}, over "
            f"buffer.capacity={spec.config.capacity}"
            f", and only the first {fitting:,} fit. Raise buffer.capacity to {total}."
        )
    if replay.total_steps < total:
        budget = f"buffer.memory_budget_gib={spec.config.memory_budget_gib:g}"
        raise UserError(
            f"{key} has {count_text(total, 'record')}, "
            f"but only {replay.total_steps:,} of them fit in {budget}, even compressed. "
            "Raise buffer.memory_budget_gib, or choose fewer episodes."
        )


def _fit(values: np.ndarray, needed: ArraySpec | None) -> np.ndarray:
    """Convert values to the environment's dtype and shape if only the float width or the axes differ."""
    if needed is None or needed.dtype.kind != "f" or values.dtype.kind != "f":
        return values
    with np.errstate(over="ignore"):
        cast = values.astype(needed.dtype, copy=False)
    if not np.isfinite(cast).all():
        return values
    same_size = values[:1].size == np.prod(needed.shape, dtype=np.int64)
    return cast.reshape(len(values), *needed.shape) if same_size else cast
