"""Settings of the replay buffer."""

import math
from dataclasses import dataclass
from enum import Enum

from ..utils.errors import UserError, require_range, take_choices


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
