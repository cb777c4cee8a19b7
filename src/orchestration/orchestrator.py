"""The base class of all runs: memory checks, reports and checkpoints."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heapwatch.counters.glibc import keep_heap
from heapwatch.objects.census import Component

from ..buffers import EpisodeReplayBuffer, ReplaySpec, ReplayStorage
from ..checkpoints.checkpoint import Checkpoint, list_checkpoints, save_checkpoint
from ..checkpoints.run_folder import require_run_folder
from ..config.schema import TrainConfig
from ..memory.guard import RunGuard
from ..memory.snapshots import SnapshotRecorder
from ..utils.components import make_part
from ..utils.footprint import footprint_stats
from ..utils.metrics import PhaseTimer
from ..utils.ranks import ALONE, Ranks
from ..utils.seeding import choose_deterministic_kernels, numpy_generator, seed_global
from .reports import Reports
from .signals import Signals

if TYPE_CHECKING:
    from ..checkpoints.mirror import Mirror

Environment = TypeVar("Environment")
Agent = TypeVar("Agent")
Config = TypeVar("Config", bound=TrainConfig)
_LOG = logging.getLogger(__name__)


class StopReason(Enum):
    """Reasons to stop a run, in order of precedence."""

    finished = "all steps are done"
    leak = "a memory leak was confirmed (memory.on_leak=stop)"
    nonfinite = "too many consecutive updates were non-finite, again after a rollback"
    stopped = "a signal requested it"
    ended = "another rank ended the run"
    rollback = "too many consecutive updates were non-finite"


@dataclass(frozen=True, slots=True)
class Parts(Generic[Environment, Agent]):
    """Components of a run."""

    environment: Environment
    replay: EpisodeReplayBuffer
    workflow: Agent
    snapshots: SnapshotRecorder


AnyParts = Parts[Any, Any]


PartsOfRun = TypeVar("PartsOfRun", bound=AnyParts)


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """Arguments for opening a run."""

    config: TrainConfig
    parts: AnyParts
    reports: Reports
    run_dir: Path
    signals: Signals
    checkpoint: Checkpoint | None = None
    """Checkpoint to resume from, or `None` for a new run."""


class Orchestrator(ABC, Generic[Config, PartsOfRun]):
    """A run with its step and checkpoints. Subclasses implement the loop. `phases` are the phases to time."""

    def __init__(self, opened: OpenedRun, phases: tuple[str, ...]) -> None:
        self.config: Config = opened.config  # pyright: ignore[reportAttributeAccessIssue]
        self.parts: PartsOfRun = opened.parts  # pyright: ignore[reportAttributeAccessIssue]
        self.reports = opened.reports
        self.run_dir, self.signals = opened.run_dir, opened.signals
        checkpoint = opened.checkpoint
        self.step, self.saved_step = (checkpoint.step, checkpoint.step) if checkpoint else (0, None)
        self.updates = 0
        self.checkpoints_to_keep, self.needed_steps = self.config.training.keep_checkpoints, set[int]()
        self.watch = PhaseTimer(*phases, "save", "memory")
        # Subclasses create the guard with their own list of first-time events.
        self.guard: RunGuard
        # True while the best state has not been saved yet.
        self.is_best = False
        # `open_run` sets this.
        self.mirror: Mirror | None = None

    @abstractmethod
    def run(self) -> Generator[None, None, StopReason]:
        """Train, pausing after each step, and return the reason for stopping.

        At the end, save a checkpoint, except before a rollback.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state needed to resume, except for the workflow and the replay."""

    def saved_model(self) -> dict[str, Any]:
        """Return the workflow's state for a checkpoint. Tensors are not copied."""
        return self.parts.workflow.state_dict()

    def held_objects(self) -> dict[str, Any]:
        """Return additional objects for the memory report, by display name."""
        return {}

    def begin_after_rollback(self) -> None:
        """Change the random streams so that the failure does not repeat. Call this before `run`."""

    def why(self, reason: StopReason) -> str:
        """Return a sentence that explains why the run stopped."""
        is_ended = reason is StopReason.ended
        return (is_ended and self.signals.finish_reason) or reason.value

    def close(self) -> None:
        """Close the run's resources."""

    def memory_metrics(self) -> dict[str, float]:
        """Sample all memory counters and components, and return the metrics to log."""
        others = self.held_objects() | {"logger": self.reports, "tracker": self.guard}
        with self.watch("memory"):
            counters, found = self.guard.counters(), components(self.parts, others)
            metrics = diagnostics(counters, self.parts)
            metrics |= self.guard.sample(self.step, counters, self.roots(), found)
        return metrics

    def report_memory(self) -> None:
        """Write the memory report."""
        with self.watch("memory"):
            report = self.guard.report(self.step)
            tags = {f"debug/run/{name}": value for name, value in footprint_stats(self.run_dir).items()}
            if report is not None:
                tags |= report.tags()
                text = f" use {report.summary()}" if report.is_still else f"\n{report.table()}"
                _LOG.info("step %s: components%s", f"{self.step:,}", text)
            self.reports.writer.scalars(self.step, tags)

    def roots(self) -> dict[str, Any]:
        """Return the run's long-lived objects, keyed by the first component of their paths."""
        named = {name: getattr(self.parts, name) for name in ("workflow", "replay", "environment")}
        return named | {"loop": self}

    def save_if_possible(self) -> None:
        """Save a checkpoint. If the disk is full or fails, log an error and keep the previous checkpoint."""
        try:
            self.save()
        except OSError as error:
            text = "step %s: checkpoint failed: %s (earlier checkpoints are intact)"
            _LOG.error(text, f"{self.step:,}", error)

    def save(self) -> None:
        """Save a checkpoint.

        Raises:
            OSError: If the disk is full or fails. Earlier checkpoints remain intact.
        """
        require_run_folder(self.run_dir)
        self.guard.mark_first(self.step, "first checkpoint")
        with self.watch("save"), self.reports.doing("saving a checkpoint"):
            keep, needed = self.checkpoints_to_keep, self.needed_steps
            model, state, replay = self.saved_model(), self.state(), self.parts.replay
            # The log must include everything up to the checkpoint.
            self.reports.writer.lines.flush()
            checkpoint = save_checkpoint(
                self.run_dir, self.step, state, model, replay, keep, self.is_best, needed
            )
        self.saved_step, self.is_best = self.step, False
        shown = Path(str(self.config.run_dir), checkpoint.folder.relative_to(self.run_dir))
        _LOG.info("step %s: checkpoint %s", f"{self.step:,}", shown)
        if self.mirror:
            self.mirror.upload(checkpoint)


def begin_run(config: TrainConfig, run_dir: Path) -> SnapshotRecorder:
    """Configure the heap, seed all generators, and start recording allocations if configured."""
    keep_heap()
    seed_global(config.seed)
    if config.deterministic:
        choose_deterministic_kernels()
    snapshots = SnapshotRecorder(run_dir / "memory_snapshots")
    if config.memory.snapshot_interval:
        snapshots.start()
    return snapshots


def build_replay(
    config: TrainConfig, request: ReplaySpec, run_dir: Path, ranks: Ranks = ALONE
) -> EpisodeReplayBuffer:
    """Allocate and return a run's replay buffer. For a new run, load the prefill.

    Each rank samples with its own random generator.
    """
    generator, directory = numpy_generator(config.seed, ranks.named("replay")), run_dir / "replay"
    replay = EpisodeReplayBuffer(
        request, generator=generator, device=config.device.value, directory=directory
    )
    replay.sampler = make_part("buffer.sampler", config.buffer.sampler, replay.plan.num_rows)
    if config.buffer.prefill and not list_checkpoints(run_dir):
        from ..episodes import prefill

        prefill(replay, Path(config.buffer.prefill), request)
    return replay


def diagnostics(counters: dict[str, float], parts: AnyParts) -> dict[str, float]:
    """Return metrics to log by tag: all counters, GPU memory in GB (1e9 bytes), and replay statistics.

    Runs on a CPU have no GPU tags.
    """
    metrics = {
        **counters,
        "train/memory/gpu_allocated_gb": counters["debug/gpu/alloc_mb"] / 1e3,
        "train/memory/gpu_reserved_gb": counters["debug/gpu/reserved_mb"] / 1e3,
        **{f"buffer/replay/{name}": value for name, value in parts.replay.stats().items()},
    }
    has_gpu = parts.workflow.device.type == "cuda"
    return {tag: value for tag, value in metrics.items() if has_gpu or "gpu" not in tag}


def components(parts: AnyParts, others: Mapping[str, Any]) -> dict[str, Component]:
    """Return the run's components with their planned memory, for a single sample.

    `others` are additional objects of the loop, keyed by display name. Some have a `planned_bytes` attribute.
    """
    arena = "cuda" if parts.replay.config.storage is ReplayStorage.cuda else "cpu"
    found = {
        f"replay/{name}": Component((), nbytes, nbytes, "cpu" if name == "index" else arena)
        for name, nbytes in parts.replay.plan.part_bytes.items()
    }
    found["replay"] = Component()
    of_workflow = {name: Component(held) for name, held in parts.workflow.components().items()}
    groups = dict.fromkeys(name.partition("/")[0] for name in of_workflow if "/" in name)
    # A group is the sum of its components.
    found |= of_workflow | {name: Component() for name in groups}
    found["environment"] = Component((parts.environment,), parts.environment.planned_bytes)
    return found | {
        name: Component((held,), getattr(held, "planned_bytes", None)) for name, held in others.items()
    }
