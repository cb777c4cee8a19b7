"""Runs of the real pipeline with a fault or a decoy inside, each in a process of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.orchestration.certificate.main import CertifyConfig, certify
from reverie.orchestration.command_line import compose_jobs
from reverie.orchestration.config import typed
from reverie.orchestration.faults import FAULTS, Fault
from reverie.orchestration.faults.wrap import after_environment_step, after_update, attach
from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator
from reverie.utils.memory.config import OnLeak

STEPS = 560
"""56 samples of 8 steps, from which on an alarm can come, after the first update at step 40."""

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
    "training.train_ratio=3",
    "training.warmup_steps=0",
    "training.log_interval=8",
    "training.checkpoint_interval=0",
    "training.video_interval=0",
    "memory.check_interval=0",  # the verdict has to find it alone
    "memory.leak_threshold_mb=0.2",
    "logger.progress=plain",
    "logger.tensorboard=false",
    f"training.total_timesteps={STEPS}",
)


def clean(run: WorldModelOrchestrator) -> None:
    pass


def losses_as_numbers(run: WorldModelOrchestrator) -> None:
    kept = attach(run, "numbers", [])
    after_update(run, lambda updated: kept().append(updated.metrics["loss/total"].item()))


def bounded_history(run: WorldModelOrchestrator) -> None:
    kept = attach(run, "recent", [])

    def remember(arrival: Any) -> None:
        kept().append(arrival)
        del kept()[:-5]

    after_environment_step(run, remember)


def sawtooth(run: WorldModelOrchestrator) -> None:
    kept = attach(run, "pieces", [])

    def pile_up(_: Any) -> None:
        kept().append(torch.ones(50_000))
        if len(kept()) == 10:
            kept().clear()

    after_update(run, pile_up)


def burst_every_twelfth_update(run: WorldModelOrchestrator) -> None:
    def burst(_: Any) -> None:
        if run.updates % 12 == 0:
            torch.ones(5_000_000).sum().item()

    after_update(run, burst)


def one_step_up(run: WorldModelOrchestrator) -> None:
    kept = attach(run, "workspace", {})

    def compile_late(_: Any) -> None:
        if run.updates == 3:
            kept()["buffer"] = torch.ones(2_000_000)

    after_update(run, compile_late)


def truncated_backpropagation(run: WorldModelOrchestrator) -> None:
    weight = torch.ones(1000, requires_grad=True)
    kept = attach(run, "window", [torch.zeros(1000)])

    def go_on(_: Any) -> None:
        kept().append(torch.tanh(kept()[-1] + weight))
        if len(kept()) > 8:
            kept()[:] = [kept()[-1].detach()]

    after_update(run, go_on)


def accumulated_gradients(run: WorldModelOrchestrator) -> None:
    weight = torch.ones(100_000, requires_grad=True)

    def accumulate(_: Any) -> None:
        (weight * 2).sum().backward()
        if run.updates % 4 == 0:
            weight.grad = None

    after_update(run, accumulate)


def allocator_keeps_pages(run: WorldModelOrchestrator) -> None:
    kept = attach(run, "few", [])

    def fragment(_: Any) -> None:
        if run.updates <= 4:  # many small blocks, of which every hundredth stays
            kept().extend([torch.ones(500) for _ in range(2000)][::100])

    after_update(run, fragment)


def mapped_file(run: WorldModelOrchestrator) -> None:
    path = run.run_dir / "mapped.bin"
    kept = attach(run, "mapped", np.memmap(path, np.uint8, "w+", shape=(20_000_000,)))

    def touch(_: Any) -> None:
        start = run.updates * 100_000 % 20_000_000
        kept()[start : start + 100_000] = 1  # the page cache grows, what is in use does not

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
    )
}


@dataclass(frozen=True)
class Outcome:
    """What a certificate said, as one process can tell another."""

    passed: bool
    steps: int
    verdicts: list[str]
    culprits: str
    text: str


def outcome_of(run_dir: Path, fault: str | None = None, *overrides: str) -> Outcome:
    """Run with a fault or a decoy, by its name."""
    torch.set_num_threads(1)
    if fault in DECOYS:
        FAULTS[fault] = Fault(DECOYS[fault], culprit="nothing")
    [job] = compose_jobs([*SETTINGS, *overrides, f"run_dir={run_dir}"])
    config = typed(job)
    config.memory = replace(config.memory, on_leak=OnLeak.stop)
    certificate = certify(config, CertifyConfig(steps=STEPS, fault=fault), "a test")
    return Outcome(
        passed=certificate.passed,
        steps=certificate.steps,
        verdicts=[finding.verdict.value for finding in certificate.findings],
        culprits="\n".join(line for finding in certificate.findings for line in finding.culprits),
        text="\n".join(certificate.lines()),
    )
