"""A population's training loop. Each generation acts, trains, evolves, reports and saves."""

import logging
import math
import time
from collections.abc import Generator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from ...checkpoints.run_folder import LINEAGE_FILE, SETTINGS_KEY, checkpoint_settings, require_run_folder
from ...config.population import PopulationTrainConfig
from ...memory.guard import RunGuard
from ...utils.durable_io import reading
from ...utils.errors import UserError
from ...utils.logging.json_lines import JsonLines
from ...utils.schedule import Every
from ...utils.state_files import check_structure
from ...utils.units import count_text, memory_text
from ...workflows.population.evolution import diversity, rank
from ...workflows.population.td3 import TrainPhase
from ..orchestrator import OpenedRun, Orchestrator, StopReason
from .engines.rollouts import Losses, RolloutResult
from .lineage import lineage_lines
from .recipe import PopulationParts
from .report import save_population_report

_LOG = logging.getLogger(__name__)
_COUNTS = ("generation", "updates")


class PopulationOrchestrator(Orchestrator[PopulationTrainConfig, PopulationParts]):
    """Runs a population until `training.generations`, `training.total_timesteps` or a request to stop.

    A checkpoint always contains the state between two generations. All random numbers depend only on the seed
    and the generation, so random generators are not saved.
    """

    def __init__(self, opened: OpenedRun) -> None:
        super().__init__(opened, ("play", "learn", "evolve"))
        config, checkpoint, run_dir = self.config, opened.checkpoint, opened.run_dir
        # Number of complete generations.
        self.generation = 0
        # True unless a generation is in progress.
        self.is_between = True
        # Durations in seconds of the generations that this process has fully trained.
        self.seconds: list[float] = []
        if checkpoint is not None:
            state = checkpoint.state()
            with reading(checkpoint.state_path):
                check_structure({name: state[name] for name in _COUNTS}, dict.fromkeys(_COUNTS, 0))
                self.generation, self.updates = (state[name] for name in _COUNTS)
        self.start_updates = self.updates
        self.lineage = JsonLines(run_dir / LINEAGE_FILE, self.step)
        # Expect only events that happen in the first generation even if episodes are short.
        interval = config.training.checkpoint_interval
        is_first = 0 < interval <= config.population.num_rollouts
        due = {"first training phase": config.population.gradient, "first checkpoint": is_first}
        self.guard = RunGuard(config.memory, [name for name, is_due in due.items() if is_due])

    def close(self) -> None:
        """Close the lineage file."""
        self.lineage.close()

    def run(self) -> Generator[None, None, StopReason]:
        """See `Orchestrator.run`. A step is a generation."""
        training = self.config.training
        save_due = Every(training.checkpoint_interval, self.step)
        memory_due = Every(self.config.memory.report_interval, self.step)
        snapshot_due = Every(self.config.memory.snapshot_interval, self.step)
        while not (reason := self._stop_reason()):
            began = time.monotonic()
            with self.watch("play"):
                result = self.parts.environment.evaluate(
                    self.parts.workflow, self.generation, lambda: self.signals.stop
                )
            if result is None:
                # The generation was interrupted before it changed any state.
                continue
            self._complete(result, began)
            if memory_due(self.step) | self._is_over():
                self.report_memory()
            if snapshot_due(self.step):
                self.parts.snapshots.save(self.step)
            if save_due(self.step) | self.signals.take_save():
                self.save_if_possible()
            yield
        if self.saved_step != self.step:
            self.save()
        if self.generation:
            self._report()
        return reason

    def _report(self) -> None:
        """Write the run's HTML report. If the lineage is invalid, log an error instead."""
        try:
            path = save_population_report(self.run_dir, self.config.population.num_elites)
        except UserError as error:
            _LOG.error("no report: %s", error)
        else:
            _LOG.info("report: %s", Path(str(self.config.run_dir), path.name))

    def save_if_possible(self) -> None:
        """Save a checkpoint, unless a generation is in progress or this step is already saved."""
        if not self.is_between:
            _LOG.error("generation %s was discarded; the previous checkpoint is intact", self.generation + 1)
        # Saving the same step again would clear its mark as the best.
        elif self.saved_step != self.step:
            super().save_if_possible()

    def _stop_reason(self) -> StopReason | None:
        """Return a reason to stop, or `None` to continue."""
        if self._is_over():
            return StopReason.finished
        if self.guard.must_stop:
            return StopReason.leak
        if self.signals.finish_reason:
            return StopReason.ended
        return StopReason.stopped if self.signals.stop else None

    def _is_over(self) -> bool:
        training = self.config.training
        return self.generation >= training.generations or self.step >= training.total_timesteps

    def _complete(self, result: RolloutResult, began: float) -> None:
        """Store the episodes, train and evolve the members, and log the generation."""
        require_run_folder(self.run_dir)
        self.is_between = False
        workflow = self.parts.workflow
        for episode in result.episodes:
            self.parts.replay.add_episode(0, episode)
        self.step += sum(result.lengths)
        self.is_best |= (
            workflow.update_best(result.fitness, self.generation) and self.config.training.keep_best
        )
        self.lineage.write(*lineage_lines(self.step, self.generation, result.fitness, workflow.origins))
        with self.watch("learn"):
            before, losses = self._learn()
        if losses:
            self.guard.mark_first(self.step, "first training phase")
            if self.config.memory.check_interval:
                with self.watch("memory"):
                    self.guard.check_graphs(self.step, self.roots())
        with self.watch("evolve"):
            spread = diversity(workflow.members.networks["actor"])
            workflow.evolve(result.fitness, self.generation, before)
        self.generation += 1
        self.is_between = True
        self._log_generation(result, losses, spread, time.monotonic() - began)

    def _learn(self) -> tuple[dict[str, Any] | None, Losses]:
        """Train all members if the replay is ready. Return their state before training, or `None`."""
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
            text = "generation %s: member %s became non-finite; restored its state before training"
            _LOG.warning(text, self.generation, member)
        return before, losses

    @property
    def is_ready(self) -> bool:
        """Whether the replay has enough records for training."""
        return self.parts.replay.total_steps >= self.config.training.learning_starts

    def _log_generation(self, result: RolloutResult, losses: Losses, spread: float, seconds: float) -> None:
        """Log the last generation."""
        starts = self.config.training.learning_starts
        until = starts if self.config.population.gradient and not losses else None
        # Generations without training are much shorter and would distort the mean.
        if until is None:
            self.seconds.append(seconds)
        # NaN counts as the worst fitness, as it does in evolution.
        fitness = np.nan_to_num(result.fitness, nan=-np.inf)[rank(result.fitness)]
        elite = fitness[: self.config.population.num_elites]
        best = self.parts.workflow.best
        metrics = {
            "population/fitness_best": float(fitness.max()),
            "population/fitness_mean": float(fitness.mean()),
            "population/fitness_elite": float(elite.mean()),
            "population/fitness_best_ever": math.nan if best is None else best.fitness,
            "population/diversity": spread,
            "population/generation": float(self.generation),
            "population/is_ready": float(self.is_ready),
            "episode/length": float(np.mean(result.lengths)),
            "time/generation_seconds": seconds,
            "train/updates": float(self.updates),
        }
        metrics |= {f"train/loss/{name}": float(np.mean(each)) for name, each in losses.items()}
        metrics |= self.memory_metrics() | self.watch.flush()
        num_updates = self.updates - self.start_updates
        self.reports.generation(self.step, num_updates, metrics, self._summary(metrics), until)

    def _summary(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the terminal lines for a generation: fitness, replay, time and memory."""
        training, best, ever = self.config.training, self.parts.workflow.best, "none"
        if best is not None:
            ever = f"{best.fitness:.4g} (member {best.member} in generation {best.generation + 1})"
        fill, capacity = metrics["buffer/replay/total_steps"], self.config.buffer.capacity
        ready = "ready" if self.is_ready else f"ready at {training.learning_starts:,}"
        memory_mb = metrics["debug/cpu/rss_mb"] + metrics.get("debug/gpu/reserved_mb", 0.0)
        by_steps = max(0, training.total_timesteps - self.step) * self.generation / self.step
        num_left = min(training.generations - self.generation, by_steps)
        left = "time left unknown"
        if self.seconds:
            mean_seconds = float(np.mean(self.seconds))
            left = f"average {mean_seconds:.1f} s, {timedelta(seconds=round(num_left * mean_seconds))} left"
        return [
            f"generation {self.generation} of {training.generations}, step {self.step:,}",
            f"  fitness  best {metrics['population/fitness_best']:.4g}   "
            f"mean {metrics['population/fitness_mean']:.4g}   "
            f"elite {metrics['population/fitness_elite']:.4g}   ever {ever}",
            f"  replay   {fill:,.0f} of {count_text(capacity, 'record')} ({fill / capacity:.0%}), {ready}",
            f"  time     {metrics['time/generation_seconds']:.1f} s, {left}",
            f"  memory   {memory_text(memory_mb, self.reports.planned_mb)}",
        ]

    def state(self) -> dict[str, Any]:
        """Return the state that `__init__` restores."""
        self.lineage.flush()
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {SETTINGS_KEY: checkpoint_settings(self.config), **counts}
