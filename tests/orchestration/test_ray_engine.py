"""A population on a Ray cluster: the same numbers as locally, after any kill, and no leftovers."""

import copy
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map_only

from reverie.commands.command_line import run_from_command_line
from reverie.commands.train import CLUSTER_EXIT_CODE, train
from reverie.config.compose import compose_jobs
from reverie.config.population import PopulationTrainConfig
from reverie.config.resolve import typed
from reverie.orchestration.orchestrator import build_replay
from reverie.orchestration.population.dry_run import transfer_bytes
from reverie.orchestration.population.engines.rollouts import EngineSettings, GroupWorker, rows_to_send
from reverie.orchestration.population.recipe import PopulationRecipe, build_engine
from reverie.orchestration.recipes import recipe_of
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE
from reverie.planning.recipe import environment_spec
from reverie.testing.fingerprint import fingerprint, hash_of
from reverie.utils.seeding import seed_global
from reverie.workflows.population.td3 import TrainPhase

from ..runs.fixtures import started_once
from ..runs.helpers import error_of, resume
from ..runs.warm import Process, Server, processes_of, wait_until

TINY = (
    "experiment=erl_pendulum",
    "device=cpu",
    # One of the two workers then has a single member.
    "population.size=3",
    "population.episodes=1",
    "population.exploration_episodes=1",
    "td3.hidden_units=16",
    "env.time_limit=30",
    "training.generations=6",
    "training.gradient_steps_per_generation=4",
    "training.gradient_accumulation_steps=2",
    "training.batch_size=16",
    "training.learning_starts=30",
    "buffer.capacity=2000",
    "logger.tensorboard=false",
)
RAY = (*TINY, "engine=ray", "ray.workers=2", "ray.object_store_mib=80")


@pytest.fixture(scope="module")
def local_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run that all others must match."""
    return started_once(tmp_path_factory, "local_engine", *TINY)


def require_equal(run_dir: Path, local_run: Path) -> None:
    assert fingerprint(run_dir) == fingerprint(local_run)
    assert (run_dir / "lineage.jsonl").read_text() == (local_run / "lineage.jsonl").read_text()


def begun(server: Server, run_dir: Path, *arguments: str) -> tuple[Process, Path]:
    """Return a run that has just written a checkpoint, and the folder of its cluster."""
    log = run_dir / "train.log"
    before = log.read_text().count(": checkpoint ") if log.exists() else 0
    process = server.start("train", *arguments)
    process.wait_until(lambda: log.exists() and log.read_text().count(": checkpoint ") > before)
    (folder,) = {
        found[1]
        for _, command in processes_of(process.pid)
        if (found := re.search(r"--raylet_socket_name=(\S*?)/session_", command))
    }
    assert Path(folder).is_dir()
    return process, Path(folder)


def kill(process: Process, name: str, frozen_seconds: float = 0.0) -> None:
    """Kill the first process with this name in a run's cluster, after freezing it for a few seconds."""
    pid = next(pid for pid, command in processes_of(process.pid) if name in command)
    if frozen_seconds:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(frozen_seconds)
    os.kill(pid, signal.SIGKILL)


def require_gone(folder: Path) -> None:
    """Wait for the process that deletes the folder. It is not in our sessions."""
    wait_until(lambda: not folder.exists())


def test_a_killed_worker_is_replaced_and_a_signal_ends_the_run_with_a_checkpoint(
    tmp_path: Path, server: Server, local_run: Path
) -> None:
    run_dir = tmp_path / "run"
    process, folder = begun(server, run_dir, *RAY, f"run_dir={run_dir}")
    kill(process, "ray::GroupWorker")
    told = r"Ray's worker \d of (members? [\d to]+) died.*restart 1 of env.max_restarts=3"
    process.wait_until(lambda: re.search(told, process.error) is not None)
    assert re.findall(told, process.error) in (["member 0"], ["members 1 to 2"])
    before = (run_dir / "train.log").read_text().count(": checkpoint ")
    process.wait_until(lambda: (run_dir / "train.log").read_text().count(": checkpoint ") > before)
    # On a terminal, Ctrl-C also reaches the cluster.
    os.killpg(process.pid, signal.SIGINT)
    # This fails if a cluster process is still alive.
    ended = process.end()
    assert (ended.code, "Traceback" in ended.error) == (RESUME_ME_EXIT_CODE, False), ended.error
    require_gone(folder)
    resume(run_dir, "engine=local")
    require_equal(run_dir, local_run)


def test_a_killed_driver_leaves_nothing_and_the_resumed_run_is_that_of_one_process(
    tmp_path: Path, server: Server, local_run: Path
) -> None:
    run_dir = tmp_path / "run"
    process, folder = begun(server, run_dir, *RAY, f"run_dir={run_dir}")
    process.send(signal.SIGKILL)
    assert process.end().code == -signal.SIGKILL
    require_gone(folder)
    process, folder = begun(server, run_dir, f"resume={run_dir}")
    ended = process.end()
    assert ended.code == 0, ended.error
    require_gone(folder)
    require_equal(run_dir, local_run)


@pytest.mark.parametrize("frozen_seconds", [0.0, 4.0], ids=["between questions", "before it answers"])
def test_a_lost_cluster_ends_the_run_where_it_can_be_resumed(
    frozen_seconds: float, tmp_path: Path, server: Server, local_run: Path
) -> None:
    run_dir = tmp_path / "run"
    process, folder = begun(server, run_dir, *RAY, f"run_dir={run_dir}")
    kill(process, "gcs_server", frozen_seconds)
    ended = process.end()
    assert (ended.code, "Traceback" in ended.error) == (CLUSTER_EXIT_CODE, False), ended.error
    assert "the Ray cluster is lost: its head does not answer" in ended.error
    # The cluster may die at any step.
    assert ". Continue with resume=" in ended.last_line
    require_gone(folder)
    resume(run_dir, "engine=local")
    require_equal(run_dir, local_run)


def composed(*changes: str) -> PopulationTrainConfig:
    return typed(compose_jobs([*TINY, *changes])[0], PopulationTrainConfig)


@pytest.mark.parametrize("hidden", [16, 256])
def test_groups_play_and_learn_what_all_members_do_together(hidden: int, tmp_path: Path) -> None:
    config = composed(f"td3.hidden_units={hidden}")
    seed_global(0)
    engine = build_engine(config)
    workflow = PopulationRecipe().build_agent(config, engine.spec)
    replay = build_replay(config, recipe_of(config).replay_spec(config, engine.spec), tmp_path)
    settings = EngineSettings(config.env, config.population, config.td3, config.seed)
    workers = {(0, 1): GroupWorker(settings, 0, 1), (1, 3): GroupWorker(settings, 1, 2)}
    # These are copies, because the arrays are views of members that will learn.
    sent = {group: copy.deepcopy(rows_to_send(workflow.members, *group)) for group in workers}

    played = engine.evaluate(workflow, 0, lambda: False)
    assert played is not None
    apart = [worker.play(sent[group][0], 0) for group, worker in workers.items()]
    assert [each for part in apart for each in part.fitness] == played.fitness
    episodes = [episode for part in apart for episode in part.episodes]
    for mine, theirs in zip(episodes, played.episodes, strict=True):
        np.testing.assert_array_equal(mine.action, theirs.action)
        np.testing.assert_array_equal(mine.reward, theirs.reward)
        replay.add_episode(0, theirs)

    phase = TrainPhase(seed=0, generation=0, members=(0, 1, 2), steps=4, accumulation=2, batch_size=16)
    table = replay.transition_table()
    learned = {group: worker.learn(*sent[group], table, phase) for group, worker in workers.items()}
    before = workflow.members.rows(0, 3)
    losses = engine.learn(workflow, replay, phase)
    assert hash_of(before) != hash_of(workflow.members.rows(0, 3))
    for group, (rows, of_group) in learned.items():
        tensors = tree_map_only(np.ndarray, torch.from_numpy, rows)
        assert hash_of(tensors) == hash_of(workflow.members.rows(*group))
        assert of_group == {name: values[slice(*group)] for name, values in losses.items()}
    engine.close()


def nbytes(arrays: object) -> int:
    if isinstance(arrays, dict):
        return sum(nbytes(each) for each in arrays.values())
    return arrays.nbytes if isinstance(arrays, np.ndarray) else 0


def test_what_is_sent_is_known_to_the_byte_before(tmp_path: Path) -> None:
    config = composed()
    spec = environment_spec(config, recipe_of(config))
    sent = transfer_bytes(config, spec)
    workflow = PopulationRecipe().build_agent(config, spec)
    actor, rest = rows_to_send(workflow.members, 0, 3)
    assert (sent["actors"], sent["rest"]) == (nbytes(actor), nbytes(rest))
    assert sent["learned"] == sent["actors"] + sent["rest"]
    assert sent["learned"] == sum(each.nbytes for each in workflow.members.tensors())
    # Four episodes of 31 records, each with 3 observed numbers, an action and a reward in float32.
    assert sent["episodes"] == 4 * 31 * 4 * (3 + 1 + 1)
    # 2,000 records, with a flag and the row where a transition starts.
    assert sent["table"] == 2000 * (4 * (3 + 1 + 1) + 1 + 8)
    without = transfer_bytes(composed("population.gradient=false"), spec)
    assert (without["rest"], without["learned"], without["table"]) == (0, 0, 0)


def test_an_object_store_that_cannot_hold_a_generation_is_refused_before_the_run(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*RAY, "buffer.capacity=3000000", "run_dir=run"]
    message = error_of(capsys, lambda: run_from_command_line(train, arguments))
    assert message == (
        "a generation sends 91.4 MiB, including 83.0 MiB of transitions, which exceeds "
        "ray.object_store_mib=80. Set ray.object_store_mib=92, or lower buffer.capacity."
    )
    assert list(empty_folder.iterdir()) == []


def test_without_the_package_the_message_says_how_to_install_it(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # This simulates a missing package.
    monkeypatch.setitem(sys.modules, "ray", None)
    message = error_of(capsys, lambda: run_from_command_line(train, [*RAY, "run_dir=run"]))
    assert message == (
        "engine=ray requires the package ray, which is not installed. "
        "Run `pip install -c constraints.txt -e '.[ray]'`, or set engine=local."
    )
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "reason"),
    [("nonsense", "Invalid address"), ("127.0.0.1:9", "[Errno 111] Connection refused")],
)
def test_a_cluster_that_cannot_be_is_one_sentence_and_leaves_no_folder(
    address: str, reason: str, tmp_path: Path, server: Server
) -> None:
    run_dir = tmp_path / "run"
    ended = server.run("train", *TINY, "engine=ray", f"ray.address={address}", f"run_dir={run_dir}")
    assert (ended.code, ended.out) == (2, "")
    assert f"ray.address={address}: cannot join a Ray cluster ({reason}" in ended.last_line
    assert not run_dir.exists()


def test_a_cluster_that_does_not_start_is_one_sentence_and_leaves_no_folder(
    tmp_path: Path, server: Server
) -> None:
    run_dir = tmp_path / "run"
    # No machine has 95 TiB, but with memory.plan=warn the run is not refused for that.
    too_much = ("memory.plan=warn", "engine=ray", "ray.object_store_mib=100000000")
    ended = server.run("train", *TINY, *too_much, f"run_dir={run_dir}")
    assert (ended.code, ended.out, "Traceback" in ended.error) == (2, "", False), ended.error
    assert ended.last_line.startswith("error: Ray did not start a cluster on this machine (")
    assert ended.last_line.endswith("or join a running cluster with ray.address=<address>.")
    assert not run_dir.exists()


def test_a_folder_of_the_user_stays_where_no_run_could_begin(tmp_path: Path, server: Server) -> None:
    arguments = (*TINY, "engine=ray", "ray.address=nonsense", f"run_dir={tmp_path}")
    assert server.run("train", *arguments).code == 2
    assert tmp_path.exists()
