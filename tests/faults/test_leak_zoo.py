"""Every fault in the real pipeline gets its verdict, its culprit is named; decoys stay silent."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from reverie.orchestration.faults import FAULTS

from . import zoo


@pytest.fixture(scope="module")
def outcome_of() -> Iterator[Callable[..., zoo.Outcome]]:
    """Each run has a process of its own: what a fault leaves behind must not reach another test.

    They are forked from one process that has imported everything and done nothing.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["reverie.orchestration.certificate"])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        yield lambda *arguments: pool.submit(zoo.outcome_of, *arguments).result()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_gets_its_verdict_and_its_culprit_is_named(
    name: str, tmp_path: Path, outcome_of: Callable[..., zoo.Outcome]
) -> None:
    fault = FAULTS[name]
    outcome = outcome_of(tmp_path / "run", name)
    assert fault.verdict in outcome.verdicts, outcome.text
    assert fault.culprit in outcome.culprits
    if fault.verdict == "leak":
        assert not outcome.passed
        assert outcome.steps < zoo.STEPS  # memory.on_leak=stop


@pytest.mark.parametrize("name", zoo.DECOYS)
def test_a_decoy_stays_silent(name: str, tmp_path: Path, outcome_of: Callable[..., zoo.Outcome]) -> None:
    outcome = outcome_of(tmp_path / "run", name)
    assert not outcome.verdicts, outcome.text
    assert outcome.steps >= zoo.STEPS


def test_evaluations_and_checkpoints_stay_silent(
    tmp_path: Path, outcome_of: Callable[..., zoo.Outcome]
) -> None:
    outcome = outcome_of(
        tmp_path / "run",
        None,
        "training.evaluation_interval=60",
        "training.evaluation_episodes=1",
        "training.checkpoint_interval=80",
        "training.total_timesteps=640",
    )
    assert not outcome.verdicts, outcome.text
