"""Signals and failing environments in runs with worker processes: their exits and leftovers."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from reverie.checkpoints.checkpoint import latest_checkpoint
from reverie.commands.train import ENVIRONMENT_EXIT_CODE
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE
from reverie.utils.seeding import episode_seed

from ..runs.helpers import (
    CARTPOLE,
    error_of,
    files_in,
    identity,
    intervals_of,
    metrics_of,
    resume,
    saved_records,
    saved_steps,
    start,
)
from ..runs.warm import LONG_ENOUGH_SECONDS, Process, Server, processes_of

IDLE = (
    "training.learning_starts=1000000",
    "training.log_interval=20",
    "training.video_interval=0",
    "training.checkpoint_interval=0",
    "logger.tensorboard=false",
)
FOUR = (*CARTPOLE, *IDLE, "env.num_envs=4", "env.vectorization=async")
ENDLESS = "training.total_timesteps=1000000"
TOY = (
    "experiment=dreamer_cartpole",
    *CARTPOLE[1:],
    *IDLE,
    "env.num_envs=2",
    "env.vectorization=async",
)


@pytest.fixture
def leaves_nothing(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield a run's environment variables, and check for leftovers in TMPDIR and shared memory.

    Other tests may use shared memory at the same time, but their files are mapped by live processes.
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = shared_memory()
    yield {"TMPDIR": str(temporary)}
    assert list(temporary.iterdir()) == []
    deadline = time.monotonic() + LONG_ENOUGH_SECONDS / 8
    while (left := unmapped(shared_memory() - before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == set()


def shared_memory() -> set[str]:
    names = re.compile(r"psm_|torch_|sem\.|pymp-|mp-")
    return {path.name for path in Path("/dev/shm").iterdir() if names.match(path.name)}


def unmapped(names: set[str]) -> set[str]:
    """Return the shared-memory files among `names` that no process maps."""
    mapped: set[str] = set()
    for process in psutil.process_iter() if names else ():
        with contextlib.suppress(psutil.Error):
            mapped.update(Path(each.path).name for each in process.memory_maps())
    return names - mapped


def begun(
    server: Server, run_dir: Path, environment: dict[str, str], *arguments: str, workers: int = 4
) -> Process:
    """Return a run in the middle of its steps, with all its workers."""
    process = server.start("train", *arguments, environment=environment)
    process.wait_for('"step"', run_dir / "metrics.jsonl")
    process.wait_for("updates/s", run_dir / "train.log")
    assert len(workers_of(process)) == workers
    return process


def workers_of(process: Process) -> list[int]:
    """Return the process ids of the environments."""
    return [pid for pid, command in processes_of(process.pid) if "spawn_main" in command]


def waits(process: Process) -> bool:
    """Return whether a run has not progressed for half a second."""
    run = psutil.Process(process.pid)
    used = run.cpu_times()
    for _ in range(10):
        time.sleep(0.05)
        if run.status() != psutil.STATUS_SLEEPING:
            return False
    return run.cpu_times() == used


def test_signals_end_a_run_of_four_processes_with_a_checkpoint_and_nothing_else(
    tmp_path: Path, server: Server, leaves_nothing: dict[str, str]
) -> None:
    run_dir = tmp_path / "run"
    process = begun(server, run_dir, leaves_nothing, *FOUR, ENDLESS, f"run_dir={run_dir}")
    process.send(signal.SIGUSR1)
    process.wait_for(": checkpoint ", run_dir / "train.log")
    (first,) = saved_steps(run_dir)
    logged = len(intervals_of(run_dir))
    # The run continues.
    process.wait_until(lambda: len(intervals_of(run_dir)) > logged)
    process.send(signal.SIGTERM)
    ended = process.end()
    assert (ended.code, "Traceback" in ended.error) == (RESUME_ME_EXIT_CODE, False)
    steps = saved_steps(run_dir)
    assert len(steps) == 2 and steps[0] == first

    (run_dir / "train.log").write_text("")
    process = begun(server, run_dir, leaves_nothing, f"resume={run_dir}")
    # On a terminal, Ctrl-C also reaches the workers.
    os.killpg(process.pid, signal.SIGINT)
    ended = process.end()
    assert (ended.code, "Traceback" in ended.error) == (RESUME_ME_EXIT_CODE, False)
    assert "failed" not in ended.error
    assert saved_steps(run_dir)[:2] == steps
    latest_checkpoint(run_dir)


def test_a_second_ctrl_c_and_a_kill_leave_no_process_and_the_checkpoint_as_it_was(
    tmp_path: Path, server: Server, leaves_nothing: dict[str, str]
) -> None:
    run_dir = tmp_path / "run"
    # Without a timeout, a hanging worker is waited for.
    settings = (ENDLESS, "env.num_envs=2", "env.worker_timeout=0")
    settings = (*FOUR, *settings, f"run_dir={run_dir}")
    process = begun(server, run_dir, leaves_nothing, *settings, workers=2)
    process.send(signal.SIGUSR1)
    process.wait_for(": checkpoint ", run_dir / "train.log")
    os.kill(workers_of(process)[0], signal.SIGSTOP)
    process.wait_until(lambda: waits(process))
    process.send(signal.SIGINT)
    process.wait_for("SIGINT: finishing the step", run_dir / "train.log")
    process.send(signal.SIGINT)
    ended = process.end()
    assert ended.code == -signal.SIGINT
    (step,) = saved_steps(run_dir)
    assert latest_checkpoint(run_dir).step == step

    (run_dir / "train.log").write_text("")
    process = begun(server, run_dir, leaves_nothing, f"resume={run_dir}", workers=2)
    # A stopped process cannot react to the signal.
    os.kill(workers_of(process)[0], signal.SIGSTOP)
    process.send(signal.SIGKILL)
    assert process.end().code == -signal.SIGKILL
    assert saved_steps(run_dir) == [step]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("call", [1, 2, 55])
def test_a_signal_in_a_step_ends_the_run_with_a_checkpoint_of_that_very_step(
    call: int, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While action `call` is executed, `call - 1` actions are complete, and these are saved."""
    step = CartPoleEnv.step
    # The first call probes the environment before a run exists.
    calls = iter(range(10**6))

    def signalled(self: CartPoleEnv, action: int) -> object:
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return step(self, action)

    run_dir, settings = tmp_path / "run", (*CARTPOLE, *IDLE, "training.total_timesteps=60")
    with monkeypatch.context() as patched, pytest.raises(SystemExit) as stopped:
        patched.setattr(CartPoleEnv, "step", signalled)
        start(run_dir, *settings)
    assert stopped.value.code == RESUME_ME_EXIT_CODE
    assert saved_steps(run_dir) == [call - 1]
    if (call, number) == (55, signal.SIGTERM):
        resume(run_dir)
        assert identity(run_dir) == identity(start(tmp_path / "unbroken", *settings))


def test_a_resumed_run_whose_environment_cannot_start_loses_nothing_and_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = start(tmp_path / "run", *CARTPOLE, *IDLE, "training.total_timesteps=20")
    before = files_in(run_dir / "checkpoints")
    with monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr(CartPoleEnv, "reset", broken_after_one(CartPoleEnv.reset))
        resume(run_dir, "training.total_timesteps=40")
    assert ended.value.code == ENVIRONMENT_EXIT_CODE
    hint = f"Nothing is lost: step 20 is saved. Continue with resume={run_dir}"
    assert (run_dir / "train.log").read_text().endswith(f"{hint}\n")
    assert files_in(run_dir / "checkpoints") == before
    resume(run_dir, "training.total_timesteps=40")
    assert saved_steps(run_dir)[-1] == 40


def test_a_first_run_whose_environment_cannot_start_has_nothing_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr(CartPoleEnv, "reset", broken_after_one(CartPoleEnv.reset))
        start(tmp_path / "run", *CARTPOLE, *IDLE, "training.total_timesteps=20")
    assert (ended.value.code, saved_steps(tmp_path / "run")) == (ENVIRONMENT_EXIT_CODE, [])
    assert "There is no checkpoint yet. Continue with" in (tmp_path / "run" / "train.log").read_text()


def broken_after_one(reset: Callable[..., object]) -> Callable[..., object]:
    """Return an environment that works while it is probed before a run exists."""
    calls = iter(range(10**6))

    def broken(env: CartPoleEnv, *, seed: int | None = None, options: object = None) -> object:
        if next(calls):
            raise ConnectionError("the simulator does not answer")
        return reset(env, seed=seed)

    return broken


def test_an_environment_that_is_broken_from_its_first_step_leaves_a_resumed_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = start(tmp_path / "run", *CARTPOLE, *IDLE, "training.total_timesteps=20")
    before = files_in(run_dir)
    broken = broken_after_one(CartPoleEnv.reset)
    broken(CartPoleEnv())
    monkeypatch.setattr(CartPoleEnv, "reset", broken)
    capsys.readouterr()
    error = error_of(capsys, lambda: resume(run_dir, "training.total_timesteps=40"))
    assert error.startswith("env.id=CartPole-v1 fails in its first reset(): ConnectionError: the simulator")
    assert files_in(run_dir) == before


@pytest.mark.parametrize(
    ("kind", "timeout", "reason"),
    [
        ("Dies", 60, "its process died (exit code -9"),
        ("Hangs", 20, "its process did not respond within env.worker_timeout=20 s"),
    ],
)
def test_a_worker_that_fails_is_named_its_episode_truncated_and_the_run_survives(
    kind: str, timeout: int, reason: str, tmp_path: Path, server: Server, leaves_nothing: dict[str, str]
) -> None:
    """Environment 1's first episode fails in its second step. Its neighbors are healthy."""
    run_dir = tmp_path / "run"
    odd = {(0, 0): 0, (0, 1): 0, (1, 0): 1, (1, 1): 0, (1, 2): 0}
    seed = next(s for s in range(1000) if all(episode_seed(s, *which) % 2 == o for which, o in odd.items()))
    settings = (f"env.id=toy_world:Toy{kind}-v0", f"env.worker_timeout={timeout}", f"seed={seed}")
    settings = (*TOY, *settings, "training.total_timesteps=14", f"run_dir={run_dir}")
    ended = server.run("train", *settings, environment=leaves_nothing)
    assert (ended.code, "Traceback" in ended.error) == (0, False), ended.error
    (warning,) = [line for line in ended.error.splitlines() if "failed: " in line]
    assert f"toy_world:Toy{kind}-v0: environment 1 failed: {reason}" in warning
    assert "(restart 1 of env.max_restarts=3). Any open episode is truncated" in warning
    step = saved_steps(run_dir)[-1]
    last, terminal = (saved_records(run_dir, step, f"is_{word}") for word in ("last", "terminal"))
    assert (last & ~terminal).sum() == 1
    assert terminal.any(), "healthy episodes end by themselves"
    latest_checkpoint(run_dir)


def test_above_the_limit_of_restarts_the_run_ends_with_a_checkpoint_from_which_it_goes_on(
    tmp_path: Path, server: Server, leaves_nothing: dict[str, str]
) -> None:
    run_dir = tmp_path / "run"
    settings = ("env.id=toy_world:ToyDies-v0", "env.max_restarts=0", "training.total_timesteps=400")
    ended = server.run("train", *TOY, *settings, f"run_dir={run_dir}", environment=leaves_nothing)
    assert ended.code == ENVIRONMENT_EXIT_CODE, ended.error
    assert "The limit env.max_restarts=0 is reached." in ended.error
    assert ended.last_line.endswith(f"Continue with resume={run_dir}")
    (step,) = saved_steps(run_dir)
    latest_checkpoint(run_dir)
    ended = server.run(
        "train", f"resume={run_dir}", f"training.total_timesteps={step + 1}", environment=leaves_nothing
    )
    assert ended.code in (0, ENVIRONMENT_EXIT_CODE), ended.error
    assert saved_steps(run_dir)[-1] >= step
    steps = [line["step"] for line in metrics_of(run_dir)]
    assert steps == sorted(steps)


def test_a_picture_that_cannot_be_drawn_is_one_warning_and_training_goes_on(tmp_path: Path) -> None:
    settings = ("env.id=toy_world:ToyBlind-v0", "training.video_interval=20", "training.total_timesteps=60")
    run_dir = start(tmp_path / "run", *CARTPOLE, *settings)
    log = (run_dir / "train.log").read_text()
    [warning] = [line for line in log.splitlines() if " WARNING " in line]
    failed = "render() of toy_world:ToyBlind-v0 failed: it raised OSError: no screen"
    assert f"no video of episodes: {failed}" in warning
    assert log.rstrip().endswith(f"finished: {run_dir}")
