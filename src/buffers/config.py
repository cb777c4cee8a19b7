"""Settings of the replay buffer."""

import math
from dataclasses import dataclass
from enum import Enum

from ..utils.components import check_part
from ..utils.errors import UserError, require_range, take_choices


class ReplayStorage(Enum):
    """Host memory (ram), mapped files in the run folder (mmap), or memory of the training GPU (cuda)."""

    ram = "ram"
    mmap = "mmap"
    cuda = "cuda"


class LatentDtype(Enum):
    """Stored dtype of `deter`, named as in torch. `stoch` is always stored as class indices of one byte."""

    float16 = "float16"
    bfloat16 = "bfloat16"


@dataclass(kw_only=True, slots=True)
class ReplayConfig:
    """Settings of `EpisodeReplayBuffer`, set by `configs/buffer/*.yaml`."""

    capacity: int = 100_000
    """Maximum number of records (stored steps, including final observations) over all environments."""

    memory_budget_gib: float = 8.0
    """Maximum memory of the buffer including its index, in GiB. It is checked before the first allocation."""

    storage: ReplayStorage = ReplayStorage.ram
    """Where the records are stored: ram, mmap or cuda."""

    store_latents: bool = True
    """Store the latent state of every record, so that windows can start from the model's state."""

    latent_dtype: LatentDtype = LatentDtype.float16
    """Dtype of the stored deterministic state: float16 or bfloat16."""

    latent_every: int = 1
    """Store the latent state of only every n-th record of a stream. Windows then begin at these records. n
    must divide `training.sequence_length`, so that all records are replayed equally often, and
    `chunk_length`."""

    compressed: bool = False
    """Compress full chunks losslessly. The buffer then allocates all of `memory_budget_gib` and evicts the
    oldest episodes when it is full, regardless of the number of records."""

    cross_episodes: bool = True
    """Allow windows to span several episodes. Otherwise a window's trained steps belong to one episode."""

    newest_share: float = 0.0
    """Fraction of windows drawn from the newest quarter of each stream, so that the model follows the current
    policy. All others are drawn uniformly from all windows. All windows have the same weight in the loss."""

    sampler: str = "uniform"
    """Sampler of windows: `uniform` (see `newest_share`), or `module:Class` of your own
    (docs/components.md)."""

    chunk_length: int = 48
    """Records per chunk, the unit of memory and of saved files. Each environment has two spare chunks."""

    prefill: str | None = None
    """Folder or file of episodes to load into the replay of a new run, in a format of `reverie-episodes`."""

    def __post_init__(self) -> None:
        """Check individual fields. `plan_replay` checks the fields that depend on the environment."""
        take_choices("buffer", self)
        check_part("buffer.sampler", self.sampler)
        require_range("buffer", self, "capacity", "chunk_length", "latent_every", ge=1)
        require_range("buffer", self, "memory_budget_gib", gt=0)
        require_range("buffer", self, "newest_share", ge=0, le=1)
        if self.newest_share > 0 and self.sampler != "uniform":
            raise UserError(
                f"buffer.newest_share={self.newest_share:g} needs buffer.sampler=uniform, got "
                f"{self.sampler}: your sampler draws all windows. Set buffer.newest_share=0."
            )
        if self.compressed and self.storage is ReplayStorage.cuda:
            raise UserError(
                "buffer.compressed=true needs buffer.storage=ram or mmap, got cuda: only the CPU can "
                "decompress records. Set buffer.storage=ram."
            )
        if self.chunk_length % self.latent_every:
            nearest = largest_divisor(self.latent_every, self.chunk_length)
            raise UserError(
                f"buffer.latent_every={self.latent_every} does not divide buffer.chunk_length="
                f"{self.chunk_length}. Set buffer.latent_every={nearest}, the largest smaller divisor."
            )


def largest_divisor(most: int, *numbers: int) -> int:
    """Return the largest common divisor of all numbers that is at most `most`.

    >>> largest_divisor(12, 64, 48)
    8
    """
    common = math.gcd(*numbers)
    return next(divisor for divisor in range(most, 0, -1) if common % divisor == 0)
