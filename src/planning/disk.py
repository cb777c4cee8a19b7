"""What checkpoints take on disk when they take most: while one more than those kept is written."""

from ..buffers import LATENT_FIELDS, ReplayPlan
from ..config.schema import TrainConfig
from ..envs.episodes import MAX_FRAMES
from ..utils.timestep import EnvSpec
from . import constants
from .recipe import DryRun, Written
from .resources import Basis, Row

_OWNER_BYTES = 16
"""Of a row of latents: environment and stream index."""


def checkpoint_rows(
    config: TrainConfig,
    spec: EnvSpec,
    written: Written,
    networks: DryRun,
    replay: ReplayPlan,
    num_streams: int,
) -> list[Row]:
    """Return an upper bound of what is in the checkpoint folder, part by part.

    Checkpoints share the files of full chunks, so records are counted once, with those that only an older one
    still holds. A chain of latents has fewer than twice the capacity in rows, each further checkpoint adds at
    most the capacity. The best checkpoint may be so old that it shares nothing with the newest.
    """
    training, capacity = config.training, config.buffer.capacity
    best = int(written.has_best)
    keep = training.keep_checkpoints
    folders = keep + 1 + best
    latent = sum(field.nbytes for name, field in replay.fields.items() if name in LATENT_FIELDS)
    record = sum(field.nbytes for field in replay.fields.values()) - latent + 1  # and whether it begins one
    open_records = num_streams * config.buffer.chunk_length
    # At most two records a step, in episodes of a single step; without an interval anything may be new.
    interval = training.checkpoint_interval and 2 * (training.checkpoint_interval + written.records_per_save)
    new = min(capacity, interval or capacity)
    records = (1 + best) * (capacity + open_records) + keep * new
    rows = (keep + 2 + 2 * best) * capacity if latent else 0
    image = max((array.nbytes for array in spec.observation.values() if array.is_image), default=0)
    files = records // config.buffer.chunk_length + folders * num_streams
    return [
        Row("networks in checkpoints", folders * networks.state),
        Row("records in checkpoints", records * record),
        Row("open chunks in checkpoints", folders * open_records * record),
        Row("latents in checkpoints", rows * (latent + _OWNER_BYTES)),
        Row("recorded episodes in checkpoints", folders * MAX_FRAMES * image),
        Row(
            "headers and manifests of checkpoints",
            files * (constants.SHARED_FILE_BYTES + folders * constants.MANIFEST_LINE_BYTES)
            + folders * constants.CHECKPOINT_BYTES,
            Basis.estimated,
        ),
    ]
