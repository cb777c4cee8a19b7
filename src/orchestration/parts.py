"""What a run is made of, and how the parts common to all kinds are made."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..buffers import EpisodeReplayBuffer, ReplaySpec
from ..config.schema import TrainConfig
from ..memory.snapshots import SnapshotRecorder
from ..utils.seeding import choose_deterministic_kernels, numpy_generator, seed_global

SNAPSHOTS = "memory_snapshots"

Environment = TypeVar("Environment")
Agent = TypeVar("Agent")


@dataclass(frozen=True, slots=True)
class Parts(Generic[Environment, Agent]):
    """What a run is made of."""

    environment: Environment
    replay: EpisodeReplayBuffer
    workflow: Agent
    snapshots: SnapshotRecorder


AnyParts = Parts[Any, Any]


def begin_run(config: TrainConfig, run_dir: Path) -> SnapshotRecorder:
    """Seed all generators and, if asked to, record allocations: before the first one, to have its stack."""
    seed_global(config.seed)
    if config.deterministic:
        choose_deterministic_kernels()
    snapshots = SnapshotRecorder(run_dir / SNAPSHOTS)
    if config.memory.snapshot_interval:
        snapshots.start()
    return snapshots


def build_replay(config: TrainConfig, request: ReplaySpec, run_dir: Path) -> EpisodeReplayBuffer:
    """Return the replay buffer of a run, all its memory allocated."""
    return EpisodeReplayBuffer(
        request,
        generator=numpy_generator(config.seed, "replay"),
        device=config.device.value,
        directory=run_dir / "replay",
    )
