"""Environments that raise, die or hang: reports, episode ends, and leftovers."""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_world

from reverie.envs import (
    EnvConfig,
    EnvironmentCrashed,
    Suite,
    VectorEnvironment,
    Vectorization,
    make_environment,
)
from reverie.utils.seeding import episode_seed
from reverie.utils.timestep import TimeStep

from ..runs.warm import LONG_ENOUGH_SECONDS, wait_until

both = pytest.mark.parametrize("vectorization", list(Vectorization), ids=lambda kind: kind.name)
in_processes = Vectorization["async"]
# This suffices for any answer on a busy machine.
PATIENCE_SECONDS = 20.0


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def make(kind: str, run_seed: int = 0, *, num_envs: int = 1, **options: Any) -> VectorEnvironment:
    env_id = kind if "-v" in kind else f"toy_world:Toy{kind}-v0"
    config = EnvConfig(suite=Suite.gymnasium, id=env_id, num_envs=num_envs, action_repeat=1, **options)
    environment = make_environment(config, run_seed)
    assert isinstance(environment, VectorEnvironment)
    return environment


def actions(num_envs: int) -> np.ndarray:
    return np.tile(np.array([0, 1], np.float32), (num_envs, 1))


def faulty(*parities: int, num_envs: int = 3) -> int:
    """Return a run seed with which environment 1's first episode is faulty, and later ones as in `parities`.

    The others are healthy for 8 steps. `ToyWorld` lasts at least 3, so they start no third episode.
    """
    wanted = {(index, episode): 0 for index in range(num_envs) for episode in range(2) if index != 1}
    wanted |= {(1, episode): parity for episode, parity in enumerate([1, *parities])}
    return next(
        seed
        for seed in range(100_000)
        if all(episode_seed(seed, *which) % 2 == parity for which, parity in wanted.items())
    )


def assert_rows(arrival: TimeStep, expected: TimeStep, rows: list[int]) -> None:
    for key, value in expected.observation.items():
        np.testing.assert_array_equal(arrival.observation[key][rows], value[rows])
    for field in ("reward", "is_first", "is_last", "is_terminal"):
        np.testing.assert_array_equal(getattr(arrival, field)[rows], getattr(expected, field)[rows])


@pytest.mark.parametrize(
    ("kind", "vectorization", "reason"),
    [
        ("Raises", "sync", "it raised ArithmeticError: 100 % broken"),
        ("Raises", "async", "it raised ArithmeticError: 100 % broken"),
        ("Exits", "sync", "it raised SystemExit: 3"),
        ("Exits", "async", "it raised SystemExit: 3"),
        ("Dies", "async", "its process died (exit code -9"),
        ("Hangs", "async", "its process did not respond within env.worker_timeout=20 s"),
    ],
)
def test_one_that_fails_is_replaced_and_its_episode_truncated(
    kind: str, vectorization: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    seed = faulty(0)
    healthy = make("toy_world:Toy-v0", seed, num_envs=3)
    options = {"vectorization": Vectorization[vectorization], "worker_timeout": PATIENCE_SECONDS}
    environment = make(kind, seed, num_envs=3, **options)
    expected = [healthy.reset(), *[healthy.step(actions(3)) for _ in range(8)]]
    with caplog.at_level(logging.WARNING):
        arrivals = [environment.reset(), *[environment.step(actions(3)) for _ in range(8)]]
    healthy.close()
    environment.close()
    for arrival, wanted in zip(arrivals, expected, strict=True):
        # The others continue undisturbed.
        assert_rows(arrival, wanted, [0, 2])
    assert_rows(arrivals[1], expected[1], [1])
    failed, before = arrivals[2], arrivals[1]
    for key, value in before.observation.items():
        np.testing.assert_array_equal(failed.observation[key][1], value[1])
    flags = (failed.reward[1], failed.is_first[1], failed.is_last[1], failed.is_terminal[1])
    assert flags == (0.0, False, True, False)
    assert [arrival.failed for arrival in arrivals] == [(), (), (1,), *[()] * 6]
    assert arrivals[3].is_first.tolist()[1]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"toy_world:Toy{kind}-v0: environment 1 failed: {reason}")
    assert "restart 1 of env.max_restarts=3" in message


def test_the_next_episode_is_the_one_of_the_next_seed() -> None:
    seed = faulty(0)
    environment = make("Raises", seed, num_envs=3)
    environment.reset()
    arrivals = [environment.step(actions(3)) for _ in range(3)]
    seeds = environment.state_dict()["seeds"]
    environment.close()
    assert arrivals[-1].is_first[1]
    assert seeds[1] == episode_seed(seed, 1, 1)


@both
def test_over_the_limit_it_is_a_crash_that_tells_where_it_was_raised(vectorization: Vectorization) -> None:
    environment = make("Raises", faulty(), num_envs=3, vectorization=vectorization, max_restarts=0)
    environment.reset()
    environment.step(actions(3))
    with pytest.raises(EnvironmentCrashed) as caught:
        environment.step(actions(3))
    message = str(caught.value)
    assert message.startswith(
        "toy_world:ToyRaises-v0: environment 1 failed: it raised ArithmeticError: 100 %"
    )
    assert "The limit env.max_restarts=0 is reached." in message
    assert "toy_world.py" in message
    assert multiprocessing.active_children() == []
    environment.close()


def test_every_restart_counts() -> None:
    environment = make("Raises", faulty(1, 1), num_envs=3, max_restarts=2)
    environment.reset()
    flags = [environment.step(actions(3)).is_last[1] for _ in range(5)]
    assert flags == [False, True, False, False, True]
    environment.step(actions(3))
    environment.step(actions(3))
    with pytest.raises(EnvironmentCrashed, match=r"env\.max_restarts=2 is reached"):
        environment.step(actions(3))


def test_the_state_after_a_crash_is_that_of_the_end_of_the_step() -> None:
    """A run may then save a checkpoint: executed actions are final, and the failed episode has ended."""
    seed = faulty(0)
    survivor, environment = (make("Raises", seed, num_envs=3, max_restarts=limit) for limit in (1, 0))
    environment.reset()
    environment.step(actions(3))
    with pytest.raises(EnvironmentCrashed):
        environment.step(actions(3))
    survivor.reset()
    expected = [survivor.step(actions(3)) for _ in range(8)]
    survivor.close()
    again = make("Raises", seed, num_envs=3)
    arrival, warnings = again.restore(environment.state_dict())
    assert warnings == []
    assert arrival.failed == expected[1].failed == (1,)
    for one, wanted in zip([arrival, *[again.step(actions(3)) for _ in range(6)]], expected[1:], strict=True):
        assert_rows(one, wanted, [0, 1, 2])
    assert not any(one.failed for one in expected[2:])
    again.close()


def test_an_episode_that_cannot_start_is_tried_again_until_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment = make("NeverStarts", faulty(), num_envs=3)
    with pytest.raises(EnvironmentCrashed, match="environment 1 failed: it raised ArithmeticError"):
        environment.reset()
    assert [record.getMessage().count("environment 1 failed") for record in caplog.records] == [1, 1, 1]


def test_after_a_crash_at_a_start_the_state_starts_that_episode_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = faulty(1)
    environment = make("toy_world:Toy-v0", seed, num_envs=3, max_restarts=1)
    arrival = environment.reset()
    while not arrival.is_last[1]:
        arrival = environment.step(actions(3))
    monkeypatch.setattr(toy_world, "raise_now_at", 0)
    with pytest.raises(EnvironmentCrashed, match=r"env\.max_restarts=1 is reached"):
        environment.step(actions(3))
    monkeypatch.setattr(toy_world, "raise_now_at", -1)
    again = make("toy_world:Toy-v0", seed, num_envs=3)
    restored, warnings = again.restore(environment.state_dict())
    again.close()
    assert restored.is_first[1]
    assert not restored.is_last[1]
    # The image is for a count of 0, not for the end of the previous episode.
    assert restored.observation["camera"][1].max() == 0
    assert again.state_dict()["seeds"][1] == episode_seed(seed, 1, 1)
    assert len(warnings) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_struck_between_two_steps_is_replaced(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"vectorization": in_processes, "worker_timeout": PATIENCE_SECONDS}
    environment = make("CartPole-v1", num_envs=2, **options)
    environment.reset()
    struck = next(process for process in multiprocessing.active_children() if process.name == "CartPole-v1 1")
    os.kill(struck.pid or 0, number)
    arrival = environment.step(actions(2))
    assert (arrival.is_last.tolist(), arrival.reward.tolist()) == ([False, True], [1.0, 0.0])
    arrival = environment.step(actions(2))
    assert (arrival.is_first.tolist(), arrival.reward.tolist()) == ([False, True], [1.0, 0.0])
    assert len(caplog.records) == 1
    assert not struck.is_alive()
    assert len(multiprocessing.active_children()) == 2
    environment.close()


def test_one_that_fails_while_it_is_brought_back_is_truncated_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seed = faulty(0, num_envs=2)
    environment = make("toy_world:Toy-v0", seed, num_envs=2)
    environment.reset()
    environment.step(actions(2))
    arrival = environment.step(actions(2))
    state, following = environment.state_dict(), environment.step(actions(2))
    environment.close()
    assert not arrival.is_last.any()
    monkeypatch.setattr(toy_world, "raise_now_at", 1)
    again = make("toy_world:Toy-v0", seed, num_envs=2)
    restored, warnings = again.restore(state)
    assert (restored.is_last.tolist(), restored.is_terminal.any()) == ([False, True], False)
    assert len(warnings) == 1
    assert len(caplog.records) == 1
    monkeypatch.setattr(toy_world, "raise_now_at", -1)
    assert_rows(again.step(actions(2)), following, [0])
    again.close()


def test_a_process_that_dies_while_it_starts_leaves_no_other_behind() -> None:
    with pytest.raises(EnvironmentCrashed, match=r"ToyUnborn-v0: .* its process died while it started"):
        make("Unborn", num_envs=2, vectorization=in_processes)


def test_signals_to_the_whole_group_are_for_the_main_process() -> None:
    environment = make("CartPole-v1", vectorization=in_processes, num_envs=2)
    environment.reset()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, number)
    assert environment.step(actions(2)).reward.tolist() == [1.0, 1.0]
    environment.close()
    environment.close()


_MAIN = """
import sys
sys.path.insert(0, {folder!r})
import multiprocessing
import numpy as np
from reverie.envs import EnvConfig, Suite, Vectorization, make_environment
if __name__ == "__main__":
    config = EnvConfig(suite=Suite.gymnasium, id="toy_world:ToyHangs-v0", action_repeat=1, num_envs=3,
                       vectorization=Vectorization["async"], worker_timeout=0)
    environment = make_environment(config, {seed})
    environment.reset()
    environment.step(np.eye(2, dtype=np.float32)[[1, 1, 1]])
    print(*[process.pid for process in multiprocessing.active_children()], flush=True)
    {then}
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("end", ["killed in a step that hangs", "gone without closing"])
def test_no_worker_outlives_the_main_process(end: str) -> None:
    then = "environment.step(np.eye(2, dtype=np.float32)[[1, 1, 1]])" if "killed" in end else "sys.exit(3)"
    code = _MAIN.format(folder=str(Path(__file__).parent), seed=faulty(), then=then)
    main = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    workers = [int(pid) for pid in main.stdout.readline().split()]
    assert len(workers) == 3
    if "killed" in end:
        main.kill()
    assert main.wait(timeout=LONG_ENOUGH_SECONDS) == (-signal.SIGKILL if "killed" in end else 3)
    main.stdout.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
