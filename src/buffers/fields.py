"""Fields of a record, as they follow from the environment and the settings of the replay buffer."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ..utils.errors import UserError, require_range
from ..utils.timestep import ActionSpec, ArraySpec, EnvSpec
from .config import ReplayConfig

OBSERVATION_PREFIX = "observation."  # of names among the fields of a record, in memory and on disk
LATENT_FIELDS = ("deter", "stoch")


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Sizes of the latent state that the buffer keeps with each record."""

    deter_size: int
    num_latents: int
    """Number of categorical variables, each with at most 256 classes."""


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """Everything that determines the fields and the size of a replay buffer."""

    config: ReplayConfig
    observation: dict[str, ArraySpec]
    action: ActionSpec
    num_envs: int = 1

    window_length: int = 65
    """Records in a window: training.sequence_length + 1."""

    latent: LatentSpec | None = None
    """None, or `buffer.store_latents=false`, stores no latents."""

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
        """Return the spec of a buffer for all that an environment gives; None stands for `ReplayConfig()`."""
        config = config or ReplayConfig()
        return cls(config, env.observation, env.action, env.num_envs, window_length, latent)

    @property
    def start_every(self) -> int:
        """Records from one possible start of a window to the next: those with a stored latent, if any has."""
        return self.config.latent_every if self.latent is not None and self.config.store_latents else 1

    @property
    def reach(self) -> int:
        """Records before an episode at which a window inside it may begin.

        The first record of a window is not trained, so that of an episode must be a later one. Pairs of
        records are transitions, all of one episode.
        """
        return int(self.window_length > 2)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Shape and dtype of a field, of one record unless said otherwise."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the field."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {self.shape}"

    def of(self, count: int) -> "FieldSpec":
        """Return the same field of `count` records."""
        return FieldSpec((count, *self.shape), self.dtype)


def record_fields(spec: ReplaySpec) -> dict[str, FieldSpec]:
    """Return the fields of a record, observations in their own dtype."""
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
    """Return the fields of a record that never change, latents apart."""
    return {name: spec for name, spec in fields.items() if name not in LATENT_FIELDS}


def observation_keys(names: Iterable[str]) -> list[str]:
    """Return the keys of the observations among the names of fields."""
    return [name.removeprefix(OBSERVATION_PREFIX) for name in names if name.startswith(OBSERVATION_PREFIX)]


def _torch_dtype(key: str, dtype: np.dtype) -> torch.dtype:
    """Return the torch dtype of an observation, or refuse one that torch cannot copy by index."""
    try:
        found = torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        found = None
    if found in (None, torch.uint16, torch.uint32, torch.uint64):
        raise UserError(
            f"Observation `{key}` of the environment has dtype {dtype}, which replay cannot store: "
            f"wrap the environment to give uint8, a signed integer or a float."
        )
    return found
