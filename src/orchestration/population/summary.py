"""Format the terminal's summary of one generation."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from ...config.population import PopulationTraining
from ...workflows.population import BestPolicy


@dataclass(frozen=True, slots=True)
class Generation:
    """Facts about a generation that are not in its metrics."""

    number: int
    """Counted from 1."""

    step: int
    """Agent steps so far."""

    best: BestPolicy | None
    """None as long as no fitness is a number."""

    mean_seconds: float
    """Mean time of the generations of this process."""

    planned_mb: float | None
    capacity: int
    """Capacity of the replay, in records."""


def generation_summary(
    generation: Generation, training: PopulationTraining, metrics: Mapping[str, float]
) -> list[str]:
    """Return the lines: fitness, replay, time, memory.

    Args:
        generation: The generation that has just ended.
        training: When the run ends.
        metrics: Metrics of this generation, by tag.
    """
    best, ever = generation.best, "none"
    if best is not None:
        ever = f"{best.fitness:.4g} (member {best.member} in generation {best.generation + 1})"
    fill = metrics["buffer/replay/total_steps"]
    is_ready = metrics["population/is_ready"] > 0
    memory = f"{metrics['debug/cpu/rss_mb'] + metrics['debug/gpu/reserved_mb']:,.0f}"
    if generation.planned_mb is not None:
        memory += f" of {generation.planned_mb:,.0f} planned"
    starts = f"ready at {training.learning_starts:,}"
    return [
        f"generation {generation.number} of {training.generations}, step {generation.step:,}",
        f"  fitness  best {metrics['population/fitness_best']:.4g}   "
        f"mean {metrics['population/fitness_mean']:.4g}   elite {metrics['population/fitness_elite']:.4g}   "
        f"ever {ever}",
        f"  replay   {fill:,.0f} of {generation.capacity:,} records ({fill / generation.capacity:.0%}), "
        f"{'ready' if is_ready else starts}",
        f"  time     {metrics['time/generation_seconds']:.1f} s, average {generation.mean_seconds:.1f} s, "
        f"{_time_left(generation, training)} left",
        f"  memory   {memory} MB",
    ]


def _time_left(generation: Generation, training: PopulationTraining) -> timedelta:
    """Return the time to the last generation, or the last step if that is first, at the average pace."""
    steps_left = max(0, training.total_timesteps - generation.step)
    by_steps = steps_left * generation.number / generation.step
    left = min(training.generations - generation.number, by_steps)
    return timedelta(seconds=round(left * generation.mean_seconds))
