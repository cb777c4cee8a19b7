"""Settings of the remote copy."""

from dataclasses import dataclass

from ..utils.ranges import require_range
from ..utils.remote_urls import check_url


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """Where checkpoints are copied to; the block `checkpoint` of `configs/train.yaml` sets it."""

    mirror: str | None = None
    """URL of a remote folder, as fsspec writes them (s3://bucket/runs, gs://..., file:///mnt/backup); each
    run has a folder in it. null for no copy. Credentials come from the environment alone."""

    mirror_timeout: float = 60.0
    """Most seconds that the end of a run waits for the copy of its last checkpoint, from 0 to a day."""

    def __post_init__(self) -> None:
        if self.mirror is not None:
            check_url("checkpoint.mirror", self.mirror)
        require_range("checkpoint", self, "mirror_timeout", ge=0, le=86_400)
