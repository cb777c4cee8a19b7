"""The loop of a population run: play, store, learn, evolve, report and save, generation by generation."""

import logging
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.compatibility import SETTINGS_KEY, checkpoint_settings
from ...checkpoints.run_folder import require_run_folder
from ...config.population import PopulationTrainConfig
from ...memory.leaks.guard import MemoryGuard
from ...utils.durable_io import reading
from ...utils.errors import UserError
from ...utils.schedule import Every
from ...utils.state_files import check_structure
from ...workflows.population import TrainPhase, rank
from ..orchestrator import Orchestrator, StopReason
from ..reports import Reports
from ..signals import Signals
from .engines.base import Losses
from .engines.rollouts import RolloutResult, num_rollouts
from .lineage import Lineage
from .parts import PopulationParts
from .report import save_population_report
from .summary import Generation, generation_summary

_LOG = logging.getLogger(__name__)
_COUNTS = ("generation", "updates")


class PopulationOrchestrator(Orchestrator):
    """Runs a population until `training.generations` or `training.total_timesteps`, or until asked to stop.

    A generation is a transaction: a checkpoint always holds the state between two of them. All random numbers
    follow from the seed and the generation's number, so no generator has to be saved.

    Args:
        config: The whole run.
        parts: Engine, replay and workflow.
        reports: Metrics, logs and pictures.
        run_dir: Folder of its checkpoints.
        signals: Requests from outside.
        checkpoint: The state to continue from; None starts from scratch.
    """

    def __init__(
        self,
        config: PopulationTrainConfig,
        parts: PopulationParts,
        reports: Reports,
        run_dir: Path,
        signals: Signals,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        super().__init__(config, parts, reports, run_dir, signals, ("play", "learn", "evolve"))
        self.parts: PopulationParts = parts
        self.config: PopulationTrainConfig = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.generation = 0
        """Number of complete generations."""

        self.is_between = True
        """Whether no generation is under way."""

        self.seconds: list[float] = []
        """Time of each generation of this process; at most `training.generations` numbers."""

        if checkpoint is not None:
            state = checkpoint.state()
            with reading(checkpoint.state_path):
                check_structure({name: state[name] for name in _COUNTS}, dict.fromkeys(_COUNTS, 0))
                self.generation, self.updates = (state[name] for name in _COUNTS)
            self.step = self.saved_step = checkpoint.step
        self.start_updates = self.updates
        self.lineage = Lineage(run_dir, self.step)
        # Expect only events that happen in the first generation, however short its episodes are.
        interval = config.training.checkpoint_interval
        is_first = 0 < interval <= num_rollouts(config.population)
        due = {
            "first training phase": config.population.gradient,
            "first checkpoint": is_first,
        }
        self.guard = MemoryGuard(config.memory, [name for name, holds in due.items() if holds])

    def close(self) -> None:
        """Close the file of the lineage."""
        self.lineage.close()

    def run(self) -> StopReason:
        """Train; return why it ended. A checkpoint is written."""
        training = self.config.training
        save_due = Every(training.checkpoint_interval, self.step)
        memory_due = Every(self.config.memory.report_interval, self.step)
        while not (reason := self._stop_reason()):
            began = time.monotonic()
            with self.watch("play"):
                result = self.parts.environment.evaluate(
                    self.parts.workflow, self.generation, lambda: self.signals.stop
                )
            if result is None:
                continue  # nothing has changed: the state is still that before this generation
            self._complete(result, began)
            is_last = self._is_over()
            if memory_due(self.step) | is_last:
                self.report_memory(is_last)
            if save_due(self.step) | self.signals.take_save():
                self.save_if_possible()
        if self.saved_step != self.step:
            self.save()
        if self.generation:
            self._report()
        return reason

    def _report(self) -> None:
        """Write the page of the run; a lineage that was edited costs the page, not the run."""
        try:
            path = save_population_report(self.run_dir, self.config.population.num_elites)
        except UserError as error:
            _LOG.error("no report: %s", error)
        else:
            _LOG.info("report: %s", os.path.relpath(path))

    def save_if_possible(self) -> None:
        """Save unless a generation is under way; the previous checkpoint is intact then."""
        if self.is_between:
            if (
                self.saved_step != self.step
            ):  # otherwise the same checkpoint again, without the mark of the best
                super().save_if_possible()
        else:
            _LOG.error("generation %s was discarded; the previous checkpoint is intact", self.generation + 1)

    def _stop_reason(self) -> StopReason | None:
        """Return why to stop now, None to continue."""
        reasons = {
            StopReason.finished: self._is_over(),
            StopReason.leak: self.guard.must_stop,
            StopReason.stopped: self.signals.stop,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _is_over(self) -> bool:
        training = self.config.training
        return self.generation >= training.generations or self.step >= training.total_timesteps

    def _complete(self, result: RolloutResult, began: float) -> None:
        """Store the episodes, let the members learn and evolve, and log the generation."""
        require_run_folder(self.run_dir)
        self.is_between = False
        workflow = self.parts.workflow
        for episode in result.episodes:
            self.parts.replay.add_episode(0, episode)
        self.step += result.steps
        self.is_best |= workflow.update_best(result.fitness, self.generation)
        self.lineage.generation(self.step, self.generation, result.fitness, workflow.origins)
        with self.watch("learn"):
            before, losses = self._learn()
        if losses:
            self.guard.mark_first(self.step, "first training phase")
            if self.config.memory.check_interval:
                with self.watch("memory"):
                    self.guard.check_graphs(self.step, self.roots())
        with self.watch("evolve"):
            diversity = workflow.diversity()
            workflow.evolve(result.fitness, self.generation, before)
        self.generation += 1
        self.is_between = True
        self._log_generation(result, losses, diversity, time.monotonic() - began)

    def _learn(self) -> tuple[dict[str, Any] | None, Losses]:
        """Let every member learn once the replay is ready; a member that becomes non-finite is restored.

        Returns:
            The members before learning, None if none learned, and the losses.
        """
        training, workflow = self.config.training, self.parts.workflow
        if not self.is_ready or not self.config.population.gradient:
            return None, {}
        phase = TrainPhase(
            seed=self.config.seed,
            generation=self.generation,
            members=tuple(range(self.config.population.size)),
            steps=training.gradient_steps_per_generation,
            accumulation=training.gradient_accumulation_steps,
            batch_size=training.batch_size,
        )
        before = workflow.members.rows(0, workflow.members.count)
        losses = self.parts.environment.learn(workflow, self.parts.replay, phase)
        self.updates += phase.steps
        for member in workflow.members.revert_nonfinite(before):
            _LOG.warning(
                "generation %s: member %s became non-finite; its state before learning is restored",
                self.generation,
                member,
            )
        return before, losses

    @property
    def is_ready(self) -> bool:
        """Whether the replay holds enough to learn from."""
        return self.parts.replay.total_steps >= self.config.training.learning_starts

    def _log_generation(
        self, result: RolloutResult, losses: Losses, diversity: float, seconds: float
    ) -> None:
        """Log the generation that has just ended."""
        self.seconds.append(seconds)
        # NaN counts as the least fit, as in evolution.
        fitness = np.nan_to_num(result.fitness, nan=-np.inf)[rank(result.fitness)]
        elite = fitness[: self.config.population.num_elites]
        best = self.parts.workflow.best
        metrics = {
            "population/fitness_best": float(fitness.max()),
            "population/fitness_mean": float(fitness.mean()),
            "population/fitness_elite": float(elite.mean()),
            "population/fitness_best_ever": math.nan if best is None else best.fitness,
            "population/diversity": diversity,
            "population/generation": float(self.generation),
            "population/is_ready": float(self.is_ready),
            "episode/length": float(np.mean(result.lengths)),
            "time/generation_seconds": seconds,
            "train/updates": float(self.updates),
        }
        metrics |= {f"train/loss/{name}": float(np.mean(each)) for name, each in losses.items()}
        metrics |= self.memory_metrics() | self.watch.flush()
        summary = generation_summary(
            Generation(
                number=self.generation,
                step=self.step,
                best=best,
                mean_seconds=float(np.mean(self.seconds)),
                planned_mb=self.reports.planned_mb,
                capacity=self.config.buffer.capacity,
            ),
            self.config.training,
            metrics,
        )
        self.reports.generation(self.step, self.updates - self.start_updates, metrics, summary)

    def state(self) -> dict[str, Any]:
        """Return the state that `__init__` loads."""
        self.lineage.flush()
        return {
            SETTINGS_KEY: checkpoint_settings(self.config),
            "generation": self.generation,
            "updates": self.updates,
        }

    def held_objects(self) -> dict[str, Any]:
        """Return nothing: between generations the loop holds numbers only."""
        return {}
