"""A run with external collectors: exact, bounded staleness, and recovery after kills."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reverie.buffers import OBSERVATION_PREFIX
from reverie.checkpoints.run_folder import load_run, resume_run
from reverie.commands.collect import CollectorsConfig, collect
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.overrides import parse
from reverie.config.resolve import typed
from reverie.config.schema import Device
from reverie.envs import make_environment
from reverie.orchestration.dreamer.recipe import check_share
from reverie.orchestration.ray_cluster import require_token
from reverie.orchestration.trained import load_agent
from reverie.utils.errors import UserError
from reverie.utils.seeding import named_seed

from ..runs.fixtures import made_once
from ..runs.helpers import (
    CATCH,
    CATCH_STEPS,
    error_of,
    intervals_of,
    metrics_of,
    resume,
    saved_loop,
    saved_replay,
    saved_steps,
    start,
)
from ..runs.warm import Server, processes_of

STALENESS = 2
COLLECTED = (
    *CATCH,
    "env.num_envs=6",
    "training.learning_starts=60",
    "collect.collectors=2",
    # Episodes of 7 steps then span several rollouts.
    "collect.steps=3",
    # This is less than the steps in flight, so updates must wait.
    f"collect.max_staleness={STALENESS}",
    "training.total_timesteps=400",
    "training.video_interval=0",
)


@pytest.fixture(scope="module")
def killed_run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run in which a collector was killed."""
    return made_once(tmp_path_factory, "collected", lambda folder: run_with_a_kill(server, folder))


def run_with_a_kill(server: Server, run_dir: Path) -> None:
    process = server.start("train", *COLLECTED, f"run_dir={run_dir}")

    def collectors() -> list[int]:
        return [pid for pid, command in processes_of(process.pid) if "ray::Collector" in command]

    process.wait_until(lambda: bool(collectors()))
    process.wait_for('"train/updates"', run_dir / "metrics.jsonl")
    os.kill(collectors()[0], signal.SIGKILL)
    # This fails if a cluster process is still alive.
    ended = process.end()
    assert ended.code == 0, ended.error
    assert "Restarted with new episodes." in ended.error


def require_exact_ratio(run_dir: Path, step: int) -> None:
    """Check that there is one update per 4 steps since the first update."""
    state = saved_loop(run_dir, step)
    assert state["updates"] == 1 + int((step - state["ratio"]["start_step"]) / 4)


def test_updates_are_those_owed_for_what_arrived_and_its_age_is_bounded(killed_run: Path) -> None:
    require_exact_ratio(killed_run, saved_steps(killed_run)[-1])
    ages = [line["collect/staleness_updates_max"] for line in intervals_of(killed_run)]
    assert 0 < max(ages) <= STALENESS


def test_streams_have_no_gap_and_begin_with_the_seeds_of_their_environments(killed_run: Path) -> None:
    config, replay = load_run(str(killed_run)), saved_replay(killed_run, saved_steps(killed_run)[-1])
    assert {len(episode.reward) for episode in replay.episodes()} == {CATCH_STEPS + 1}
    returns = [line for line in metrics_of(killed_run) if "episode/return" in line]
    assert len(returns) == len(list(replay.episodes()))
    records, half = replay._index.records, replace(config.env, num_envs=3)
    played = [part for part in range(2) if records.tail[3 * part : 3 * part + 3].all()]
    assert played
    for part in played:
        rows = records.rows(np.arange(3 * part, 3 * part + 3), np.zeros(3, int))
        (first,) = replay._values(rows, [f"{OBSERVATION_PREFIX}image"])
        # The third collector replaces the killed one. The killed one may not have sent any step.
        begun = [
            make_environment(half, named_seed(config.seed, "collector", start), first=3 * part).reset()
            for start in (part, 2)
        ]
        assert any((first == step.observation["image"]).all() for step in begun)


def test_a_run_continues_with_other_episodes(killed_run: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(killed_run, tmp_path / "run"))
    resume(run_dir, "training.total_timesteps=430")
    last = saved_steps(run_dir)[-1]
    # Two, one replacement for the killed one, and two.
    assert saved_loop(run_dir, last)["environment"] == {"starts": 5}
    require_exact_ratio(run_dir, last)


def test_a_run_with_collectors_is_played_without_them(killed_run: Path) -> None:
    run, _, step = load_agent(str(killed_run), Device.cpu)
    assert isinstance(run, DreamerTrainConfig) and run.collect.collectors == 0
    assert step == saved_steps(killed_run)[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ("collect.collectors=4",),
            "env.num_envs=6 is not divisible by collect.collectors=4. Set env.num_envs=8.",
        ),
        (("training.offline=true",), "would never act with training.offline=true. Omit one of them."),
        (("collect.max_staleness=0",), "collect.max_staleness must be at least 1, got 0."),
    ],
)
def test_what_collectors_cannot_do_is_one_sentence(changes: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        typed(compose_jobs([*COLLECTED, *changes])[0])


def test_ranks_and_a_run_without_collectors_are_refused(catch_run: Path) -> None:
    config = typed(compose_jobs([*COLLECTED, "training.batch_size=4"])[0], DreamerTrainConfig)
    with pytest.raises(UserError, match=r"collect.collectors needs one process, but 2 ranks share this run"):
        check_share(config, 2)
    with pytest.raises(UserError, match=r"collect.collectors=2: collect.collectors cannot change"):
        resume_run(str(catch_run), parse(["collect.collectors=2"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"address": "head"}, "address=head has no port. Example: address=10.0.0.1:6379."),
        ({"address": "head:1", "collectors": 0}, "collectors must be at least 1, got 0."),
    ],
)
def test_reverie_collect_refuses_what_is_no_address(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        CollectorsConfig(**changes)


def test_reverie_collect_says_that_nothing_answers() -> None:
    with pytest.raises(UserError, match=r"address=127.0.0.1:9: no Ray cluster responds"):
        collect(CollectorsConfig(address="127.0.0.1:9"))


@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        # This makes monkeypatch unset it afterwards.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_token")
def test_collectors_and_their_learner_need_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        refused = rf"address={address} needs a token, but this machine has none. Run `ray get-auth-token"
        with pytest.raises(UserError, match=rf"^{refused}"):
            collect(CollectorsConfig(address=address))
        error = error_of(capsys, lambda: start(tmp_path / "run", *COLLECTED, f"collect.address={address}"))
        assert re.match(rf"collect.{refused}", error)


@pytest.mark.usefixtures("no_token")
def test_a_cluster_is_joined_only_with_its_own_token_also_of_a_program_that_has_imported_ray_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cluster(RAY_AUTH_TOKEN="a" * 32) as (address, mode):
        assert mode == "token"
        monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 32)
        require_token("address", address)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "b" * 32)
        refused = f"address={address} rejects this machine's token. Set RAY_AUTH_TOKEN to the output of"
        with pytest.raises(UserError, match=refused):
            require_token("address", address)


@pytest.mark.usefixtures("no_token")
def test_a_cluster_that_asks_for_no_token_is_refused_unless_tokens_are_disabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cluster(RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN="a" * 32) as (address, _):
        monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 32)
        with pytest.raises(UserError, match=f"address={address} does not require a token, so anyone"):
            require_token("address", address)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        require_token("address", address)


CLUSTER = """\
import os, ray
ray._raylet.get_authentication_mode()  # Ray reads its settings when it is imported.
from reverie.orchestration.ray_cluster import Cluster
cluster = Cluster(None, 1)
print('%s:%d' % cluster._address, os.environ['RAY_AUTH_MODE'], flush=True)
input()
cluster.close()
"""


@contextlib.contextmanager
def cluster(**variables: str) -> Iterator[list[str]]:
    """Start a cluster in its own process, because Ray's authentication settings last for the process.

    Yields its address and authentication mode.
    """
    command = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(
        command, env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()
        process.communicate("\n")
        assert process.returncode == 0
