"""Do what every run does, whatever it trains: watch memory, report, save."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from heapwatch.counters.glibc import keep_heap
from heapwatch.counters.process import footprint_stats
from heapwatch.objects.census import Component

from ..buffers import EpisodeReplayBuffer, ReplaySpec, ReplayStorage
from ..checkpoints.checkpoint import Checkpoint, list_checkpoints, save_checkpoint
from ..checkpoints.run_folder import require_run_folder
from ..config.schema import TrainConfig
from ..memory.guard import RunGuard
from ..memory.snapshots import SnapshotRecorder
from ..utils.metrics import PhaseTimer
from ..utils.ranks import ALONE, Ranks
from ..utils.seeding import choose_deterministic_kernels, numpy_generator, seed_global
from .outlook import OutlookOnce
from .reports import Reports
from .signals import Signals

if TYPE_CHECKING:
    from ..checkpoints.mirror import Mirror

Environment = TypeVar("Environment")
Agent = TypeVar("Agent")
Config = TypeVar("Config", bound=TrainConfig)
_LOG = logging.getLogger(__name__)


class StopReason(Enum):
    """Why a run stops, the strongest reason first."""

    finished = "all steps are taken"
    leak = "a leak is certain, and memory.on_leak=stop"
    nonfinite = "too many updates in a row were not finite, again after a rollback"
    stopped = "a signal asked for it"
    rollback = "too many updates in a row were not finite"


@dataclass(frozen=True, slots=True)
class Parts(Generic[Environment, Agent]):
    """What a run is made of."""

    environment: Environment
    replay: EpisodeReplayBuffer
    workflow: Agent
    snapshots: SnapshotRecorder


AnyParts = Parts[Any, Any]


PartsOfRun = TypeVar("PartsOfRun", bound=AnyParts)


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """What a run is opened with."""

    config: TrainConfig
    parts: AnyParts
    reports: Reports
    run_dir: Path
    signals: Signals
    checkpoint: Checkpoint | None = None
    """Where to continue from; None starts anew."""


class Orchestrator(ABC, Generic[Config, PartsOfRun]):
    """A run with its step, its instruments and its checkpoints; subclasses implement the loop, in phases."""

    def __init__(self, opened: OpenedRun, phases: tuple[str, ...]) -> None:
        self.config: Config = opened.config  # pyright: ignore[reportAttributeAccessIssue]
        self.parts: PartsOfRun = opened.parts  # pyright: ignore[reportAttributeAccessIssue]
        self.reports = opened.reports
        self.run_dir, self.signals = opened.run_dir, opened.signals
        checkpoint = opened.checkpoint
        self.step, self.saved_step = (checkpoint.step, checkpoint.step) if checkpoint else (0, None)
        self.updates = 0
        self.checkpoints_to_keep = self.config.training.keep_checkpoints
        self.watch = PhaseTimer(*phases, "save", "memory")
        self.guard: RunGuard  # subclasses know which first times it has to wait for
        self.is_best = False  # and no checkpoint holds it yet
        self.mirror: Mirror | None = None  # `open_run` gives it
        self._outlook = OutlookOnce(self.parts.replay)

    @abstractmethod
    def run(self) -> StopReason:
        """Train; return why it ended. A checkpoint is written, but before a rollback."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return all that resuming needs, apart from the workflow and the replay."""

    def saved_model(self) -> dict[str, Any]:
        """Return what of the workflow a checkpoint holds; the tensors are live."""
        return self.parts.workflow.state_dict()

    def held_objects(self) -> dict[str, Any]:
        """Return further objects of the loop that hold memory, by the name to show."""
        return {}

    def begin_after_rollback(self) -> None:
        """Change what would lead to the same end again; call it before `run`."""

    def why(self, reason: StopReason) -> str:
        """Return why the run ended, as a sentence to log."""
        return reason.value

    def close(self) -> None:
        """Close what the run itself has opened."""

    def memory_metrics(self) -> dict[str, float]:
        """Take a sample of everything that is watched; return what to log of it."""
        others = self.held_objects() | {"logger": self.reports, "tracker": self.guard}
        with self.watch("memory"):
            counters, found = self.guard.counters(), components(self.parts, others)
            metrics = diagnostics(counters, self.parts)
            metrics |= self.guard.sample(self.step, counters, self.roots(), found)
        if steady := self._outlook(self.step):
            _LOG.info("step %s: replay: %s", f"{self.step:,}", steady)
        return metrics

    def report_memory(self) -> None:
        """Write what holds what."""
        with self.watch("memory"):
            report = self.guard.report(self.step)
            tags = {f"debug/run/{name}": value for name, value in footprint_stats(self.run_dir).items()}
            if report is not None:
                tags |= report.tags()
                text = f"memory {report.summary()}" if report.is_still else f"memory\n{report.table()}"
                _LOG.info("step %s: %s", f"{self.step:,}", text)
            self.reports.writer.scalars(self.step, tags)

    def roots(self) -> dict[str, Any]:
        """Return the long-lived objects of the run, by the name with which paths begin."""
        named = {name: getattr(self.parts, name) for name in ("workflow", "replay", "environment")}
        return named | {"loop": self}

    def save_if_possible(self) -> None:
        """Save; on a full or failing disk keep the previous checkpoint."""
        try:
            self.save()
        except OSError as error:
            text = "step %s: checkpoint failed: %s (earlier checkpoints are intact)"
            _LOG.error(text, f"{self.step:,}", error)

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
            OSError: If the disk is full or fails; earlier checkpoints are intact.
        """
        require_run_folder(self.run_dir)
        self.guard.mark_first(self.step, "first checkpoint")
        with self.watch("save"), self.reports.doing("saving a checkpoint"):
            keep, model, state = self.checkpoints_to_keep, self.saved_model(), self.state()
            self.reports.writer.flush()  # a log must not be behind its checkpoint
            checkpoint = save_checkpoint(
                self.run_dir, self.step, state, model, self.parts.replay, keep, self.is_best
            )
        self.saved_step, self.is_best = self.step, False
        shown = Path(str(self.config.run_dir), checkpoint.folder.relative_to(self.run_dir))
        _LOG.info("step %s: checkpoint %s", f"{self.step:,}", shown)
        if self.mirror:
            self.mirror.upload(checkpoint)


def begin_run(config: TrainConfig, run_dir: Path) -> SnapshotRecorder:
    """Ready the heap, seed all generators and, if asked to, record allocations from the first one on."""
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
    """Return the replay buffer of a run, all its memory allocated; that of a new run holds its prefill.

    Each rank draws its own windows.
    """
    generator, directory = numpy_generator(config.seed, ranks.named("replay")), run_dir / "replay"
    replay = EpisodeReplayBuffer(
        request, generator=generator, device=config.device.value, directory=directory
    )
    if config.buffer.prefill and not list_checkpoints(run_dir):
        from ..episodes import prefill

        prefill(replay, Path(config.buffer.prefill), request)
    return replay


def diagnostics(counters: dict[str, float], parts: AnyParts) -> dict[str, float]:
    """Return the tags of a log line: counters, two of them also in GB (1e9 bytes), and the replay's."""
    return {
        **counters,
        "train/memory/gpu_allocated_gb": counters["debug/gpu/alloc_mb"] / 1e3,
        "train/memory/gpu_reserved_gb": counters["debug/gpu/reserved_mb"] / 1e3,
        **{f"buffer/replay/{name}": value for name, value in parts.replay.stats().items()},
    }


def components(parts: AnyParts, others: Mapping[str, Any]) -> dict[str, Component]:
    """Return the parts of a run with what each plans to hold, to be dropped after one sample.

    `others` are further objects of the loop by the name to show; some have `planned_bytes`.
    """
    arena = "cuda" if parts.replay.config.storage is ReplayStorage.cuda else "cpu"
    found = {
        f"replay/{name}": Component((), nbytes, nbytes, "cpu" if name == "index" else arena)
        for name, nbytes in parts.replay.plan.part_bytes.items()
    }
    found["replay"] = Component()
    of_workflow = {name: Component(held) for name, held in parts.workflow.components().items()}
    groups = dict.fromkeys(name.partition("/")[0] for name in of_workflow if "/" in name)
    found |= of_workflow | {name: Component() for name in groups}  # sums of their parts
    found["environment"] = Component((parts.environment,), parts.environment.planned_bytes)
    return found | {
        name: Component((held,), getattr(held, "planned_bytes", None)) for name, held in others.items()
    }
