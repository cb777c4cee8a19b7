"""Fields of a record, derived from the environment and the settings of the replay buffer."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ..utils.errors import UserError, require_range
from ..utils.timestep import ActionSpec, ArraySpec, EnvSpec
from .config import ReplayConfig

# Prefix of observation keys in field names, in memory and on disk.
OBSERVATION_PREFIX = "observation."
LATENT_FIELDS = ("deter", "stoch")
INDEX_FILE, OPEN_FILE = REPLAY_FILES = "replay.json", "replay_open.safetensors"
"""Files that a replay buffer adds to a checkpoint folder."""


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Sizes of the latent state stored with each record."""

    deter_size: int
    num_latents: int
    """Number of categorical variables, each with at most 256 classes."""


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """All parameters that determine a replay buffer's fields and size."""

    config: ReplayConfig
    observation: dict[str, ArraySpec]
    action: ActionSpec
    num_envs: int = 1

    window_length: int = 65
    """Number of records in a window: `training.sequence_length` + 1."""

    latent: LatentSpec | None = None
    """Latents are not stored if this is `None` or `buffer.store_latents=false`."""

    def __post_init__(self) -> None:
        require_range("", self, "window_length", ge=2)
        require_range("", self, "num_envs", ge=1)

    @classmethod
    def of(
        cls,
        env: EnvSpec,
        config: ReplayConfig | None = None,
        window_length: int = 65,
        latent: LatentSpec | None = None,
    ) -> "ReplaySpec":
        """Return the spec of an environment's buffer. `config` defaults to `ReplayConfig()`."""
        config = config or ReplayConfig()
        return cls(config, env.observation, env.action, env.num_envs, window_length, latent)

    @property
    def start_every(self) -> int:
        """Distance in records between possible window starts. If latents are stored, each start needs one."""
        return self.config.latent_every if self.latent is not None and self.config.store_latents else 1

    @property
    def reach(self) -> int:
        """Maximum number of records by which a window begins before the episode that it trains on.

        The model is not trained on the first record of a window, so it is trained on an episode's first
        record only in windows that begin before this record. Windows of two records are transitions and stay
        within one episode.
        """
        return int(self.window_length > 2)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Shape and dtype of a field, by default for one record."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Size of the field in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"

    def of(self, count: int) -> "FieldSpec":
        """Return the field for `count` records."""
        return FieldSpec((count, *self.shape), self.dtype)


def record_fields(spec: ReplaySpec) -> dict[str, FieldSpec]:
    """Return the fields of a record, with observations in their original dtype."""
    fields = {
        OBSERVATION_PREFIX + key: FieldSpec(array.shape, _torch_dtype(key, array.dtype))
        for key, array in spec.observation.items()
    }
    fields["action"] = FieldSpec((spec.action.size,), torch.float32)
    fields["reward"] = FieldSpec((), torch.float32)
    for flag in ("is_first", "is_last", "is_terminal"):
        fields[flag] = FieldSpec((), torch.bool)
    if spec.latent is not None and spec.config.store_latents:
        deter_dtype = getattr(torch, spec.config.latent_dtype.value)
        fields["deter"] = FieldSpec((spec.latent.deter_size,), deter_dtype)
        fields["stoch"] = FieldSpec((spec.latent.num_latents,), torch.uint8)
    return fields


def step_fields_of(fields: Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
    """Return the fields of a record that never change: all except latents."""
    return {name: spec for name, spec in fields.items() if name not in LATENT_FIELDS}


def observation_keys(names: Iterable[str]) -> list[str]:
    """Return the observation keys among these field names."""
    return [name.removeprefix(OBSERVATION_PREFIX) for name in names if name.startswith(OBSERVATION_PREFIX)]


def _torch_dtype(key: str, dtype: np.dtype) -> torch.dtype:
    """Return the torch dtype of an observation. Raise `UserError` if torch cannot index it."""
    try:
        found = torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        found = None
    if found in (None, torch.uint16, torch.uint32, torch.uint64):
        raise UserError(
            f"Observation `{key}` of the environment has dtype {dtype}, which replay does not support. "
            f"Wrap the environment to return uint8, a signed integer or a float."
        )
    return found
