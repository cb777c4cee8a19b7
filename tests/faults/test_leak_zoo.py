"""Each fault in the real pipeline gets the right verdict and culprit. Decoys produce no findings."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import zoo

# `clean` is the run with evaluations and checkpoints. The table runs each decoy separately.
TOGETHER = (
    "losses_as_numbers+bounded_history+sawtooth+truncated_backpropagation+accumulated_gradients",
    "burst_every_twelfth_update+one_step_up",
    "allocator_keeps_pages+mapped_file",
)
# All of several culprits must be reported. The table runs each fault separately.
AT_ONCE = (
    "native_memory+ctypes_malloc",
    "files_left_open+sockets+processes_left_running+shared_memory",
    "views_of_batches+hook_each_update+optimizers_replaced",
    "rssm_kept_sometimes+losses_after_backward",
    "global_trace+rssm_half_detached",
    "observations_kept+exceptions_kept+results_by_step",
    "callbacks_kept+queue_not_drained+deque_without_limit",
    "metrics_history+module_global+class_attribute",
    "closure+lru_cache+queue_of_views",
    "dict_by_episode+strings+byte_strings",
    "exceptions+list_of_a_thread+frames_of_a_wrapper",
)
ALONE = [name for name in zoo.LEAKS if name not in "+".join(AT_ONCE).split("+")]
FILLING = ("cache_of_60+bounded_deque", "cache_of_160+cache_of_1000", "logarithm")


@pytest.fixture(scope="module")
def outcome_of() -> Iterator[Callable[..., zoo.Outcome]]:
    with zoo.separate_process() as outcome_of:
        yield outcome_of


@pytest.mark.parametrize("names", [*AT_ONCE, *ALONE])
def test_a_fault_gets_its_verdict_and_its_culprit_is_named(
    names: str, tmp_path: Path, outcome_of: Callable[..., zoo.Outcome]
) -> None:
    faults = [zoo.LEAKS[name] for name in names.split("+")]
    outcome = outcome_of(tmp_path / "run", names)
    assert {fault.verdict for fault in faults} <= set(outcome.verdicts), outcome.text
    assert [fault.culprit for fault in faults if fault.culprit not in outcome.culprits] == []
    if faults[0].verdict == "leak":
        assert not outcome.is_flat
        # memory.on_leak=stop ended the run.
        assert outcome.steps_left > 0


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
    # Decoys of 1000 still fill after 56 samples.
    if "1000" not in names:
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
