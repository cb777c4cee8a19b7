"""The number of threads: its sources, the choice of the fastest, and its persistence in a run."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
import yaml

from reverie.envs import EnvConfig, Suite, Vectorization, make_environment
from reverie.orchestration.threads import PaceWatch, candidates, choose, measure
from reverie.utils.cpus import cgroup_quotas

from ..runs.helpers import CATCH, error_of, resume, start

ONE, TWO = "threads      1 of ", "threads      2 of "


def log_of(run_dir: Path) -> str:
    return (run_dir / "train.log").read_text()


def saved_threads(run_dir: Path) -> int:
    return yaml.safe_load((run_dir / "config.yaml").read_text())["threads"]


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def test_omp_num_threads_decides_and_the_run_keeps_it_until_threads_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    run_dir = start(tmp_path / "run", *CATCH, "training.total_timesteps=50")
    assert f"{TWO}" in log_of(run_dir) and ": OMP_NUM_THREADS=2\n" in log_of(run_dir)
    assert (saved_threads(run_dir), torch.get_num_threads()) == (2, 2)

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    resume(run_dir, "training.total_timesteps=60")
    assert log_of(run_dir).count(TWO) == 2
    assert (saved_threads(run_dir), torch.get_num_threads()) == (2, 2)

    resume(run_dir, "training.total_timesteps=70", "threads=1")
    assert "threads 2 -> 1" in log_of(run_dir) and ONE in log_of(run_dir)
    assert (saved_threads(run_dir), torch.get_num_threads()) == (1, 1)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_without_a_setting_a_new_run_measures_and_says_what_it_found(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [
        sys.executable,
        "scripts/train.py",
        *CATCH,
        "training.total_timesteps=50",
        f"run_dir={run_dir}",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    [line] = [line for line in log_of(run_dir).splitlines() if "INFO threads" in line]
    chosen = saved_threads(run_dir)
    assert f"threads      {chosen} of {len(os.sched_getaffinity(0))} CPUs: " in line
    assert "in a benchmark at startup" in line


def test_new_networks_on_another_machine_choose_anew(tmp_path: Path) -> None:
    start(tmp_path / "run", *CATCH, "training.total_timesteps=50", "threads=2")
    run_dir = start(tmp_path / "new", "resume=pretrained:catch", "training.total_timesteps=50")
    # The tests set OMP_NUM_THREADS.
    assert saved_threads(run_dir) == 1


@pytest.mark.parametrize("threads", ["0", "-1", "1025"])
def test_a_count_out_of_range_is_refused(
    threads: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(capsys, lambda: start(tmp_path / "run", *CATCH, f"threads={threads}"))
    assert error == f"threads must be in [1, 1024], got {threads}."


def measured(seconds_of: Callable[[int], float], cpus: int) -> tuple[int, list[int]]:
    """Return the chosen number of threads and each call's number, given the seconds of an update."""
    now, calls = 0.0, list[int]()

    def update() -> None:
        nonlocal now
        calls.append(torch.get_num_threads())
        now += seconds_of(calls[-1])

    found = measure([update], candidates(cpus), clock=lambda: now)
    return choose(found)[0], calls


def test_the_fastest_number_wins_in_a_second_of_turns() -> None:
    chosen, calls = measured(lambda count: 0.04 / count**0.25, 4)
    assert chosen == 4 and calls[-3:] == [1, 2, 4]
    assert 0.9 < sum(0.04 / count**0.25 for count in calls) < 1.3


def test_clearly_slower_numbers_are_not_measured_further() -> None:
    chosen, calls = measured(lambda count: 0.02 * count**2, 16)
    assert chosen == 1 and set(calls) == {1, 2} and calls.count(2) == 2


def test_of_equally_fast_numbers_the_smallest_wins() -> None:
    assert measured(lambda count: 0.02 if count == 1 else 0.0195, 8)[0] == 1


def test_on_a_slow_machine_three_rounds_are_enough() -> None:
    _, calls = measured(lambda count: 1.0, 2)
    assert calls.count(2) == 3


def test_every_process_that_steps_an_environment_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    config = EnvConfig(suite=Suite.gymnasium, num_envs=2, action_repeat=1)
    config.vectorization = Vectorization["async"]
    environment = make_environment(config, 0)
    try:
        workers = [psutil.Process(child.pid) for child in multiprocessing.active_children()]
        assert [worker.environ()["OMP_NUM_THREADS"] for worker in workers] == ["1", "1"]
        assert os.environ["OMP_NUM_THREADS"] == "8"
    finally:
        environment.close()


def test_a_pace_that_halves_for_several_intervals_is_noticed_once() -> None:
    watch = PaceWatch()
    paces = [4.0, 4.2, 0.5, 4.1, 4.0, 4.2] + 10 * [1.9]
    assert [watch.has_halved(pace) for pace in paces].index(True) == 8
    assert not any(watch.has_halved(1.0) for _ in range(20))


@pytest.mark.parametrize(
    ("files", "membership", "quotas"),
    [
        ({"job/cpu.max": "250000 100000", "cpu.max": "max 100000"}, "0::/job", [2.5]),
        ({"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/job", []),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/job", [0.5]),
        ({}, "0::/elsewhere", []),
    ],
)
def test_a_quota_of_the_control_group_is_a_number_of_cpus(
    files: dict[str, str], membership: str, quotas: list[float], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(cgroup_quotas(tmp_path, membership)) == quotas
