"""Settings of the replay buffer, and the fields of a record that follow from them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch

from ..utils.errors import UserError, require_range, take_choices
from ..utils.timestep import ActionSpec, ArraySpec, EnvSpec

OBSERVATION_PREFIX = "observation."  # of names among the fields of a record, in memory and on disk
LATENT_FIELDS = ("deter", "stoch")


class ReplayStorage(Enum):
    """Memory of the arena."""

    ram = "ram"  # anonymous host memory, committed at start
    mmap = "mmap"  # files in the run folder, mapped into memory; the disk space is reserved at start
    cuda = "cuda"  # memory of the training GPU: sampling then needs no transfer


class LatentDtype(Enum):
    """Stored dtype of `deter`, by its name in torch; `stoch` is always class indices of one byte."""

    float16 = "float16"
    bfloat16 = "bfloat16"


@dataclass(kw_only=True, slots=True)
class ReplayConfig:
    """Settings of `EpisodeReplayBuffer`; `configs/buffer/*.yaml` sets them."""

    capacity: int = 100_000
    """Records kept, over all environments; a record is one stored step, final observations included."""

    memory_budget_gib: float = 8.0
    """Most memory the buffer may own, index included, in GiB; checked before the first allocation."""

    storage: ReplayStorage = ReplayStorage.ram
    """Memory of the arena: ram, mmap or cuda."""

    store_latents: bool = True
    """Keep the latent state of every record, so that a window starts from the model's state there."""

    latent_dtype: LatentDtype = LatentDtype.float16
    """Dtype of the stored deterministic state: float16 or bfloat16."""

    latent_every: int = 1
    """Keep the latent state of every n-th record of a stream only, where alone windows then begin; it divides
    `training.sequence_length`, so that every record is replayed equally often, and `chunk_length`."""

    compressed: bool = False
    """Keep full chunks as codes, without loss; `memory_budget_gib` is then what is allocated, and the oldest
    episodes go when it is full, however many records it holds."""

    cross_episodes: bool = True
    """Let windows cross the border of two episodes; otherwise the trained steps are of one episode."""

    newest_share: float = 0.0
    """Share of the windows that are drawn from the newest quarter of each stream, so that a model follows the
    policy that plays now; the others are drawn from all. The loss weighs them alike."""

    chunk_length: int = 48
    """Records in a chunk: the unit of the arena, which has two chunks an environment to spare, and of the
    files in a checkpoint."""

    prefill: str | None = None
    """Folder or file of episodes that a new run begins with, in a format of `reverie-episodes`; or null."""

    def __post_init__(self) -> None:
        """Check the bounds of single fields; those that need the environment are checked by `plan_replay`."""
        take_choices("buffer", self)
        require_range("buffer", self, "capacity", "chunk_length", "latent_every", ge=1)
        require_range("buffer", self, "memory_budget_gib", gt=0)
        require_range("buffer", self, "newest_share", ge=0, le=1)
        if self.compressed and self.storage is ReplayStorage.cuda:
            raise UserError(
                "buffer.compressed=true needs buffer.storage=ram or mmap, got cuda: codes are read by the "
                "processor. Set buffer.storage=ram."
            )
        if self.chunk_length % self.latent_every:
            nearest = largest_divisor(self.latent_every, self.chunk_length)
            raise UserError(
                f"buffer.latent_every={self.latent_every} does not divide buffer.chunk_length="
                f"{self.chunk_length}. Set buffer.latent_every={nearest}, the largest below it that does."
            )


def largest_divisor(most: int, *numbers: int) -> int:
    """Return the largest divisor of all numbers that is not above `most`.

    >>> largest_divisor(12, 64, 48)
    8
    """
    common = math.gcd(*numbers)
    return next(divisor for divisor in range(most, 0, -1) if common % divisor == 0)


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
