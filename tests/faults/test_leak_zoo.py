"""Every fault in the real pipeline gets its verdict, its culprit is named; decoys stay silent."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import zoo

# `clean` is the run with evaluations and checkpoints; the table runs each decoy alone.
TOGETHER = (
    "losses_as_numbers+bounded_history+sawtooth+truncated_backpropagation+accumulated_gradients",
    "burst_every_twelfth_update+one_step_up",
    "allocator_keeps_pages+mapped_file",
)
FILLING = ("cache_of_60+bounded_deque", "cache_of_160", "cache_of_1000", "logarithm")


@pytest.fixture(scope="module")
def outcome_of() -> Iterator[Callable[..., zoo.Outcome]]:
    with zoo.separate_process() as outcome_of:
        yield outcome_of


@pytest.mark.parametrize("name", zoo.LEAKS)
def test_a_fault_gets_its_verdict_and_its_culprit_is_named(
    name: str, tmp_path: Path, outcome_of: Callable[..., zoo.Outcome]
) -> None:
    fault = zoo.LEAKS[name]
    outcome = outcome_of(tmp_path / "run", name)
    assert fault.verdict in outcome.verdicts, outcome.text
    assert fault.culprit in outcome.culprits
    if fault.verdict == "leak":
        assert not outcome.is_flat
        assert outcome.steps_left > 0  # memory.on_leak=stop


@pytest.mark.parametrize("names", TOGETHER)
def test_decoys_stay_silent(names: str, tmp_path: Path, outcome_of: Callable[..., zoo.Outcome]) -> None:
    outcome = outcome_of(tmp_path / "run", names)
    assert not outcome.verdicts, outcome.text
    assert outcome.steps >= zoo.STEPS


@pytest.mark.parametrize("names", FILLING)
def test_what_fills_or_slows_down_ends_no_run(
    names: str, tmp_path: Path, outcome_of: Callable[..., zoo.Outcome]
) -> None:
    outcome = outcome_of(tmp_path / "run", names, f"training.total_timesteps={zoo.PATIENT_STEPS}")
    assert outcome.steps_left <= 0 and "leak" not in outcome.verdicts, outcome.text
    if names in ("cache_of_60+bounded_deque", "logarithm"):  # the others still fill after 56 samples
        assert not outcome.verdicts, outcome.text


def test_a_large_replay_that_fills_stays_silent(
    tmp_path: Path, outcome_of: Callable[..., zoo.Outcome]
) -> None:
    steps = f"training.total_timesteps={zoo.PATIENT_STEPS}"
    outcome = outcome_of(tmp_path / "run", "clean", "buffer.capacity=20000", steps)
    assert outcome.is_flat and not outcome.verdicts, outcome.text


def test_no_decoy_is_left_out() -> None:
    assert sorted("+".join(("clean", *TOGETHER, *FILLING)).split("+")) == sorted(zoo.DECOYS)


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
