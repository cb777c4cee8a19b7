"""Runs of the real pipeline with a fault or a decoy, each in its own process."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.commands.certify import CertifyConfig, certify
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.config.schema import WorkflowName
from reverie.memory.config import OnLeak
from reverie.orchestration.signals import Signals
from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator
from reverie.testing.faults import FAULTS, Fault, attach
from reverie.utils.ranks import ALONE

from . import injected, user_code
from .wrap import after_environment_step, after_update

STEPS = 560
"""56 samples of 8 steps, the minimum for an alarm, after the first update at step 40."""

SETTINGS = (
    "experiment=dreamer_catch",
    "device=cpu",
    "model=debug",
    "env.num_envs=4",
    "buffer.capacity=1000",
    "buffer.chunk_length=32",
    "training.batch_size=2",
    "training.sequence_length=6",
    "training.learning_starts=40",
    "training.train_ratio=1.5",
    "training.warmup_steps=0",
    "training.log_interval=8",
    "training.checkpoint_interval=0",
    "training.video_interval=0",
    # The verdict must find the fault without this check.
    "memory.check_interval=0",
    "memory.leak_threshold_mb=0.2",
    # Without patience, half a minute of growth is all the evidence.
    "memory.leak_share=0",
    "logger.progress=plain",
    "logger.tensorboard=false",
    f"training.total_timesteps={STEPS}",
)

PATIENT_STEPS = 1200
"""150 samples. Growth is detected after 56, and a filling cache is full before the end."""

POPULATION_STEPS = 1400
"""70 generations with one sample each."""

POPULATION_SETTINGS = (
    "experiment=erl_pendulum",
    "device=cpu",
    "population.size=3",
    "population.episodes=1",
    "population.exploration_episodes=1",
    "td3.hidden_units=16",
    "env.time_limit=5",
    "buffer.capacity=500",
    "training.generations=1000",
    f"training.total_timesteps={POPULATION_STEPS}",
    "training.gradient_steps_per_generation=2",
    "training.gradient_accumulation_steps=3",
    "training.batch_size=4",
    "training.learning_starts=40",
    "training.checkpoint_interval=0",
    "memory.check_interval=0",
    "memory.leak_threshold_mb=0.2",
    "memory.leak_share=0",
    "logger.tensorboard=false",
)


def clean(run: WorldModelOrchestrator) -> None:
    """Change nothing in the run."""


def losses_as_numbers(run: WorldModelOrchestrator) -> None:
    """Keep every loss as a plain number."""
    kept = attach(run, "numbers", [])
    after_update(run, lambda updated: kept().append(updated.metrics["loss/total"].item()))


def bounded_history(run: WorldModelOrchestrator) -> None:
    """Keep the last five arrivals."""
    kept = attach(run, "recent", [])

    def remember(arrival: Any) -> None:
        kept().append(arrival)
        del kept()[:-5]

    after_environment_step(run, remember)


def sawtooth(run: WorldModelOrchestrator) -> None:
    """Accumulate ten tensors, drop them all, and start again."""
    kept = attach(run, "pieces", [])

    def pile_up(_: Any) -> None:
        kept().append(torch.ones(50_000))
        if len(kept()) == 10:
            kept().clear()

    after_update(run, pile_up)


def burst_every_twelfth_update(run: WorldModelOrchestrator) -> None:
    """Allocate 20 MB temporarily at every twelfth update."""

    def burst(_: Any) -> None:
        if run.updates % 12 == 0:
            torch.ones(5_000_000).sum().item()

    after_update(run, burst)


def one_step_up(run: WorldModelOrchestrator) -> None:
    """Allocate an 8 MB workspace once, late in the run, as a compiler does."""
    kept = attach(run, "workspace", {})

    def compile_late(_: Any) -> None:
        if run.updates == 3:
            kept()["buffer"] = torch.ones(2_000_000)

    after_update(run, compile_late)


def truncated_backpropagation(run: WorldModelOrchestrator) -> None:
    """Keep the graph of the last eight updates."""
    weight = torch.ones(1000, requires_grad=True)
    kept = attach(run, "window", [torch.zeros(1000)])

    def go_on(_: Any) -> None:
        kept().append(torch.tanh(kept()[-1] + weight))
        if len(kept()) > 8:
            kept()[:] = [kept()[-1].detach()]

    after_update(run, go_on)


def accumulated_gradients(run: WorldModelOrchestrator) -> None:
    """Accumulate gradients over four updates."""
    weight = torch.ones(100_000, requires_grad=True)

    def accumulate(_: Any) -> None:
        (weight * 2).sum().backward()
        if run.updates % 4 == 0:
            weight.grad = None

    after_update(run, accumulate)


def allocator_keeps_pages(run: WorldModelOrchestrator) -> None:
    """Free 99 of 100 small blocks, so that the C allocator keeps their pages."""
    kept = attach(run, "few", [])

    def fragment(_: Any) -> None:
        # Of many small blocks every hundredth stays.
        if run.updates <= 4:
            kept().extend([torch.ones(500) for _ in range(2000)][::100])

    after_update(run, fragment)


def mapped_file(run: WorldModelOrchestrator) -> None:
    """Touch more and more of a mapped file, so that the page cache grows."""
    path = run.run_dir / "mapped.bin"
    kept = attach(run, "mapped", np.memmap(path, np.uint8, "w+", shape=(20_000_000,)))

    def touch(_: Any) -> None:
        start = run.updates * 100_000 % 20_000_000
        # The page cache grows, but not the memory in use.
        kept()[start : start + 100_000] = 1

    after_update(run, touch)


DECOYS: dict[str, Callable[[WorldModelOrchestrator], None]] = {
    inject.__name__: inject
    for inject in (
        clean,
        losses_as_numbers,
        bounded_history,
        sawtooth,
        burst_every_twelfth_update,
        one_step_up,
        truncated_backpropagation,
        accumulated_gradients,
        allocator_keeps_pages,
        mapped_file,
        *user_code.DECOYS,
    )
}

LEAKS: dict[str, Fault] = injected.FAULTS | {
    name: Fault(inject, culprit) for name, (inject, culprit) in user_code.LEAKS.items()
}
"""Faults of the run itself, and of surrounding user code."""


def description(name: str) -> str:
    """Return the description of a fault or a decoy in one sentence."""
    inject = LEAKS[name].inject if name in LEAKS else DECOYS[name]
    return (inject.__doc__ or "").partition("\n")[0]


@dataclass(frozen=True)
class Outcome:
    """The result of a certificate in a form that can be sent between processes."""

    is_flat: bool
    steps: int
    steps_left: int
    """Requested steps that were not executed."""

    verdicts: list[str]
    culprits: str
    found_at: int | None
    """Agent step of the first finding."""

    text: str


@contextmanager
def separate_process() -> Iterator[Callable[..., Outcome]]:
    """Give each run of `outcome_of` its own process, because a fault's leftovers must not affect another run.

    The processes are forked from one process that has made a short run without a fault.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.warm"])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        yield lambda *arguments: pool.submit(outcome_of, *arguments).result()


def outcome_of(run_dir: Path, fault: str | None = None, *overrides: str) -> Outcome:
    """Run with a fault or a decoy, or with several of one kind, given by names joined with +."""
    torch.set_num_threads(1)
    names = (fault or "").split("+")
    if fault and DECOYS.keys() >= set(names):
        FAULTS[fault] = Fault(lambda run: [DECOYS[name](run) for name in names], culprit="nothing")
        overrides = ("memory.leak_share=0.05", *overrides)
    elif fault:
        together = Fault(lambda run: [LEAKS[name].inject(run) for name in names], culprit="several")
        FAULTS[fault] = together if len(names) > 1 else LEAKS[fault]
    is_population = fault in FAULTS and FAULTS[fault].workflow is WorkflowName.population
    settings = POPULATION_SETTINGS if is_population else SETTINGS
    [job] = compose_jobs([*settings, *overrides, f"run_dir={run_dir}"])
    config = typed(job)
    config.memory = replace(config.memory, on_leak=OnLeak.stop)
    certificate = certify(
        config, CertifyConfig(fault=fault), "a test", Signals(), config.training.total_timesteps, ALONE
    )
    return Outcome(
        is_flat=certificate.outcome.value == "flat",
        steps=certificate.steps,
        steps_left=config.training.total_timesteps - certificate.steps,
        verdicts=[finding.verdict.value for finding in certificate.findings],
        culprits="\n".join(line for finding in certificate.findings for line in finding.sources),
        found_at=certificate.findings[0].step if certificate.findings else None,
        text="\n".join(certificate.lines()),
    )
