"""Settings of the replay buffer."""

from dataclasses import dataclass
from enum import Enum

import torch

from ..utils.ranges import require_range


class ReplayStorage(Enum):
    """Memory of the arena."""

    ram = "ram"
    """Anonymous host memory, committed at start."""

    mmap = "mmap"
    """Files in the run folder, mapped into memory; the disk space is reserved at start."""

    cuda = "cuda"
    """Memory of the training GPU: sampling then needs no transfer."""


class LatentDtype(Enum):
    """Stored dtype of `deter`; `stoch` is always stored as class indices of one byte."""

    float16 = "float16"
    bfloat16 = "bfloat16"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of that name."""
        return {LatentDtype.float16: torch.float16, LatentDtype.bfloat16: torch.bfloat16}[self]


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

    cross_episodes: bool = True
    """Let windows cross the border of two episodes; otherwise each window is inside one episode."""

    chunk_length: int = 48
    """Records in a chunk: the unit of the arena, which has two chunks an environment to spare, and of the
    files in a checkpoint."""

    def __post_init__(self) -> None:
        """Check the bounds of single fields; those that need the environment are checked by `plan_replay`."""
        require_range("buffer", self, "capacity", "chunk_length", ge=1)
        require_range("buffer", self, "memory_budget_gib", gt=0)
