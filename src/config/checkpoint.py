"""Settings of the remote copy."""

from dataclasses import dataclass

from ..utils.errors import UserError
from ..utils.remote_urls import check_url

_LONGEST_WAIT = 86_400.0


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """Where checkpoints are copied to; the block `checkpoint` of `configs/train.yaml` sets it."""

    mirror: str | None = None
    """URL of a remote folder, as fsspec writes them (s3://bucket/runs, gs://..., file:///mnt/backup); the run
    has a folder of its own in it. null for no copy. Credentials come from the environment alone."""

    mirror_wait: float = 60.0
    """Seconds that the end of a run waits at most for the copy of its last checkpoint."""

    def __post_init__(self) -> None:
        if self.mirror is not None:
            check_url("checkpoint.mirror", self.mirror)
        if not 0 <= self.mirror_wait <= _LONGEST_WAIT:
            raise UserError(
                f"checkpoint.mirror_wait must be 0 to {_LONGEST_WAIT:g} seconds, got {self.mirror_wait:g}."
            )
