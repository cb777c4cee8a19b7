"""Every fault in the real pipeline gets its verdict, its culprit is named; decoys stay silent."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reverie.orchestration.faults import FAULTS

from . import zoo

# `clean` is the run with evaluations and checkpoints; the table runs each decoy alone.
TOGETHER = (
    "losses_as_numbers+bounded_history+sawtooth+truncated_backpropagation+accumulated_gradients",
    "burst_every_twelfth_update+one_step_up",
    "allocator_keeps_pages+mapped_file",
)


@pytest.fixture(scope="module")
def outcome_of() -> Iterator[Callable[..., zoo.Outcome]]:
    with zoo.separate_process() as outcome_of:
        yield outcome_of


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
        assert outcome.steps_left > 0  # memory.on_leak=stop


@pytest.mark.parametrize("names", TOGETHER)
def test_decoys_stay_silent(names: str, tmp_path: Path, outcome_of: Callable[..., zoo.Outcome]) -> None:
    outcome = outcome_of(tmp_path / "run", names)
    assert not outcome.verdicts, outcome.text
    assert outcome.steps >= zoo.STEPS


def test_no_decoy_is_left_out() -> None:
    assert sorted("+".join(("clean", *TOGETHER)).split("+")) == sorted(zoo.DECOYS)


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
