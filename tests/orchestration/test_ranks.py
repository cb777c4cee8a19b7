"""Real runs with several ranks: joint exits, no lost data, and continuation with other rank counts."""

import dataclasses
import json
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from reverie.checkpoints.run_folder import LOCK_FILE, load_run
from reverie.checkpoints.shards import RANKS, DividedAnew
from reverie.commands.certify import EXIT_CODES
from reverie.commands.command_line import run_from_command_line
from reverie.commands.episodes import main as export_episodes
from reverie.commands.runs import continued
from reverie.commands.train import train
from reverie.config.resolve import multiplies_bfloat16
from reverie.config.schema import Device
from reverie.envs import EnvConfig, make_environment, spec_of, state_form
from reverie.envs.config import Suite
from reverie.episodes import find_episodes
from reverie.orchestration.dreamer.loop_state import check_form
from reverie.orchestration.dreamer.recipe import check_share, share_of
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE
from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator
from reverie.testing.certificate import CERTIFICATE_JSON, Outcome
from reverie.utils.errors import UserError
from reverie.utils.ranks import ALONE, RANK_EXIT_CODE, Ranks
from reverie.utils.timestep import ActionSpec

from ..runs.fixtures import made_once
from ..runs.forked_ranks import free_port
from ..runs.helpers import (
    CARTPOLE,
    CATCH,
    differing,
    error_of,
    metrics_of,
    resume,
    saved_loop,
    saved_model,
    saved_steps,
    start,
)
from ..runs.warm import Ended, Process, Server, processes_of

SHARED = (
    *CATCH,
    "training.batch_size=4",
    "training.train_ratio=6",
    "training.learning_starts=60",
    "training.total_timesteps=200",
    "training.checkpoint_interval=100",
    "training.log_interval=100",
    "training.video_interval=0",
    "training.rank_timeout=100",
    "memory.check_interval=5",
)


def ranks_of(
    server: Server, size: int, *arguments: str, command: str = "train", of_each: tuple[str, ...] = ()
) -> list[Process]:
    """Start the processes of a run as torchrun does. `of_each` is an additional argument for each rank."""
    run = {"WORLD_SIZE": f"{size}", "LOCAL_WORLD_SIZE": f"{size}", "MASTER_PORT": f"{free_port()}"}
    run |= {"MASTER_ADDR": "127.0.0.1"}
    each = ({"RANK": f"{index}", "LOCAL_RANK": f"{index}"} for index in range(size))
    return [
        server.start(command, *arguments, *of_each[index : index + 1], environment=run | own)
        for index, own in enumerate(each)
    ]


def codes(processes: list[Process]) -> list[int]:
    return [process.end().code for process in processes]


@pytest.fixture(scope="module")
def shared_run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an uninterrupted run of two ranks and 200 steps."""

    def make(folder: Path) -> None:
        assert codes(ranks_of(server, 2, *SHARED, f"run_dir={folder}")) == [0, 0]

    return made_once(tmp_path_factory, "two_ranks", make)


def test_ranks_count_the_steps_of_all_and_save_at_the_same_ones(shared_run: Path) -> None:
    other = shared_run / RANKS / "001"
    assert saved_steps(shared_run) == saved_steps(other) == [100, 200]
    assert saved_loop(shared_run, 200)["updates"] == saved_loop(other, 200)["updates"] == 36
    assert saved_loop(shared_run, 200)["ranks"] == 2
    assert not (other / "tensorboard").exists()
    assert set(saved_model(other, 200)) == {"online"}


def test_episodes_of_all_ranks_and_their_mean_losses_are_in_every_log(shared_run: Path) -> None:
    first, other = (metrics_of(folder) for folder in (shared_run, shared_run / RANKS / "001"))
    returns = [[line["episode/return"] for line in log if "episode/return" in line] for log in (first, other)]
    assert returns[0] == returns[1] and len(returns[0]) == 4 * (200 // 4 // 7)
    losses = [
        [line["train/loss/total"] for line in log if "train/loss/total" in line] for log in (first, other)
    ]
    assert losses[0] == losses[1] and losses[0]


def test_the_episodes_of_all_ranks_are_exported(shared_run: Path, tmp_path: Path) -> None:
    export_episodes(["export", f"run={shared_run}", f"to={tmp_path / 'episodes'}"])
    found = find_episodes(tmp_path / "episodes")
    assert len(list(found.read(ActionSpec(3, True)))) == 4 * (200 // 4 // 7)


def test_environments_have_the_seeds_of_their_numbers_in_the_run() -> None:
    config = EnvConfig(suite=Suite.catch, action_repeat=1, num_envs=4)
    half = dataclasses.replace(config, num_envs=2)
    whole, last = make_environment(config, 5).reset(), make_environment(half, 5, first=2).reset()
    np.testing.assert_array_equal(last.observation["image"], whole.observation["image"][2:])
    assert (whole.observation["image"][:2] != whole.observation["image"][2:]).any()


def test_a_run_of_two_ranks_continues_bit_for_bit_after_a_kill(
    shared_run: Path, server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    first, other = ranks_of(server, 2, *SHARED, "training.total_timesteps=100000", f"run_dir={folder}")
    other.wait_until(lambda: saved_steps(folder) == [100])
    other.send(signal.SIGKILL)
    ended = first.end()
    assert (ended.code, other.end().code) == (RANK_EXIT_CODE, -signal.SIGKILL)
    assert "rank 0 of 2 lost another rank" in ended.error
    # Overlap does not change any bit.
    settings = ("training.total_timesteps=200", "training.overlap=true")
    assert codes(ranks_of(server, 2, f"resume={folder}", *settings)) == [0, 0]
    for part in ("", f"{RANKS}/001"):
        assert not differing(saved_model(folder / part, 200), saved_model(shared_run / part, 200))
        assert not differing(saved_loop(folder / part, 200), saved_loop(shared_run / part, 200))


def test_ranks_log_the_numbers_in_the_infos_of_all(server: Server, tmp_path: Path) -> None:
    settings = (
        *CARTPOLE,
        "env.num_envs=2",
        "env.wrappers=[gymnasium.wrappers.RecordEpisodeStatistics]",
        "training.learning_starts=1000",
        "training.rank_timeout=100",
    )
    assert codes(ranks_of(server, 2, *settings, f"run_dir={tmp_path / 'run'}")) == [0, 0]
    found = [line for line in metrics_of(tmp_path / "run") if "episode/return" in line]
    # An episode of this policy lasts about 20 steps.
    assert len(found) > 8
    for line in found:
        assert (line["info/episode/r"], line["info/episode/l"]) == (
            line["episode/return"],
            line["episode/length"],
        )
        assert "info/success" not in line


STOPPING = """
import os, sys
import reverie

def stop(step, values):
    if os.environ["RANK"] == "1" and step >= 40:
        raise reverie.Stop

run = reverie.train(overrides=sys.argv[1:], callback=stop)
print("returned", run.run_dir)
"""


def test_stop_on_one_rank_ends_all_with_a_checkpoint_and_a_normal_return(
    server: Server, tmp_path: Path
) -> None:
    folder, program = tmp_path / "run", tmp_path / "program.py"
    program.write_text(STOPPING)
    processes = ranks_of(server, 2, str(program), *SHARED, f"run_dir={folder}", command="script")
    first, other = (process.end() for process in processes)
    assert (first.code, first.out) == (0, f"returned {folder}\n"), first.error
    assert (other.code, other.out) == (0, f"returned {folder / RANKS / '001'}\n"), other.error
    [step] = saved_steps(folder)
    assert saved_steps(folder / RANKS / "001") == [step] and 40 <= step < 60
    assert f"ended at step {step}: another rank ended the run; continue" in first.error


def test_a_signal_to_one_rank_stops_all_with_a_checkpoint_of_the_same_step(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "stopped"
    processes = ranks_of(server, 2, *SHARED, "training.total_timesteps=100000", f"run_dir={folder}")
    processes[1].wait_until(lambda: saved_steps(folder) == [100])
    processes[1].send(signal.SIGTERM)
    ended = [process.end() for process in processes]
    assert [each.code for each in ended] == [RESUME_ME_EXIT_CODE] * 2
    assert all(each.last_line.endswith(f"continue with resume={folder}") for each in ended)
    assert saved_steps(folder)[-1] == saved_steps(folder / RANKS / "001")[-1]


def test_a_rank_whose_folder_is_gone_fails_to_save_with_all_others(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    endless = ("training.total_timesteps=100000", "training.log_interval=100000")
    processes = ranks_of(server, 2, *SHARED, *endless, f"run_dir={folder}")
    processes[1].wait_until(lambda: saved_steps(folder) == [100])
    lock = folder / RANKS / "001" / LOCK_FILE
    lock.rename(lock.with_name("aside"))
    for process in processes:
        process.wait_until(lambda: "checkpoint failed" in (folder / "train.log").read_text())
    lock.with_name("aside").rename(lock)
    processes[0].send(signal.SIGTERM)
    assert codes(processes) == [RESUME_ME_EXIT_CODE] * 2
    assert "checkpoint failed" in (folder / RANKS / "001" / "train.log").read_text()


def test_checkpoints_stay_complete_if_rank_0_cannot_write_the_next_ones(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    endless = ("training.total_timesteps=100000", "training.checkpoint_interval=40")
    processes = ranks_of(server, 2, *SHARED, *endless, "training.keep_checkpoints=1", f"run_dir={folder}")
    processes[1].wait_until(lambda: bool(saved_steps(folder)))
    # Rank 0 cannot create the folders of the next checkpoints.
    in_the_way = [folder / "checkpoints" / f"step_{step:09d}.unfinished" for step in range(400, 40_000, 40)]
    for path in in_the_way:
        path.touch()
    processes[1].wait_until(lambda: (folder / "train.log").read_text().count("checkpoint failed") >= 3)
    for process in processes:
        process.send(signal.SIGKILL)
    assert codes(processes) == [-signal.SIGKILL] * 2
    for path in in_the_way:
        path.unlink()
    [kept] = saved_steps(folder)
    assert kept in saved_steps(folder / RANKS / "001")
    assert codes(ranks_of(server, 2, f"resume={folder}", f"training.total_timesteps={kept + 40}")) == [0, 0]


@pytest.mark.parametrize("overlap", ["false", "true"])
def test_ranks_wait_for_an_environment_that_is_slower_than_their_timeout(
    overlap: str, server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    settings = ("training.total_timesteps=100000", "training.rank_timeout=10", "memory.check_interval=1")
    workers = (
        "training.warmup_steps=0",
        "env.vectorization=async",
        f"training.overlap={overlap}",
        f"run_dir={folder}",
    )
    processes = ranks_of(server, 2, *SHARED, *settings, *workers)
    processes[1].wait_until(lambda: saved_steps(folder) == [100])
    worker, *_ = (pid for pid, line in processes_of(processes[1].pid) if "spawn_main" in line)
    os.kill(worker, signal.SIGSTOP)
    time.sleep(12)
    os.kill(worker, signal.SIGCONT)
    processes[0].send(signal.SIGTERM)
    assert codes(processes) == [RESUME_ME_EXIT_CODE] * 2


def test_a_rank_that_hangs_ends_the_others_with_a_sentence(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "hung"
    settings = ("training.total_timesteps=100000", "training.rank_timeout=10", f"run_dir={folder}")
    first, other = ranks_of(server, 2, *SHARED, *settings)
    other.wait_until(lambda: saved_steps(folder) == [100])
    other.send(signal.SIGSTOP)
    ended: Ended = first.end()
    other.send(signal.SIGKILL)
    other.end()
    assert ended.code == RANK_EXIT_CODE
    assert (
        "To continue from the newest checkpoint, start torchrun again with resume=<run folder>"
        in ended.last_line
    )


def test_each_rank_is_certified_in_its_folder_and_the_worst_counts(server: Server, tmp_path: Path) -> None:
    run = (*SHARED, f"run_dir={tmp_path / 'run'}", "training.log_interval=20")
    own = ("certify.steps=160", f"certify.out={tmp_path / 'out'}")
    processes = ranks_of(server, 2, *run, *own, command="certify")
    ended = [process.end() for process in processes]
    assert [each.code for each in ended] == [EXIT_CODES[Outcome.undecided]] * 2
    assert "rank 0: undecided\nrank 1: undecided\nUNDECIDED" in ended[0].out and not ended[1].out
    found = [
        json.loads((tmp_path / "out" / part / CERTIFICATE_JSON).read_text()) for part in ("", f"{RANKS}/001")
    ]
    assert [each["outcomes_of_ranks"] for each in found] == [["undecided"] * 2, ["undecided"]]
    assert found[0]["resources"][0]["values"] != found[1]["resources"][0]["values"]


def test_ranks_without_a_checkpoint_begin_again(shared_run: Path, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # The run was killed while it saved.
    shutil.copytree(shared_run, folder, ignore=shutil.ignore_patterns("step_*"))
    ended = [process.end() for process in ranks_of(server, 2, f"resume={folder}")]
    assert [each.code for each in ended] == [0, 0], ended[0].error
    assert "no checkpoint yet: the run starts over" in ended[0].error
    for part in ("", f"{RANKS}/001"):
        assert not differing(saved_model(folder / part, 200), saved_model(shared_run / part, 200))


def test_ranks_begin_with_the_same_networks_after_a_kill_in_their_first_checkpoint(
    shared_run: Path, server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    settings = (f"model.init={shared_run}", "training.total_timesteps=100", f"run_dir={folder}")
    assert codes(ranks_of(server, 2, *SHARED, *settings)) == [0, 0]
    # Rank 0 did not get to write its part.
    shutil.rmtree(folder / "checkpoints")
    assert codes(ranks_of(server, 2, f"resume={folder}")) == [0, 0]


def test_two_ranks_then_one_then_four_share_a_run(shared_run: Path, server: Server, tmp_path: Path) -> None:
    """Several processes can continue a single one's run. `tests/buffers/test_divided.py` compares records."""
    folder = tmp_path / "run"
    shutil.copytree(shared_run, folder)
    before = [saved_loop(folder / part, 200)["environment"] for part in ("", f"{RANKS}/001")]
    assert server.run("train", f"resume={folder}", "training.total_timesteps=204").code == 0
    alone = saved_loop(folder, 204)
    assert len(alone["environment"]["seeds"]) == 4
    # One step later, each environment plays the same or the next episode.
    numbers = [number for each in before for number in each["next_episode"]]
    assert all(
        now - then in (0, 1) for now, then in zip(alone["environment"]["next_episode"], numbers, strict=True)
    )
    assert codes(ranks_of(server, 4, f"resume={folder}", "training.total_timesteps=220")) == [0] * 4
    seeds = [
        saved_loop(folder / part, 220)["environment"]["seeds"]
        for part in ("", *(f"{RANKS}/00{n}" for n in (1, 2, 3)))
    ]
    assert [len(each) for each in seeds] == [1] * 4 and len({*map(tuple, seeds)}) == 4


def test_more_than_a_thousand_environments_keep_their_order(tmp_path: Path) -> None:
    spec = spec_of(EnvConfig(suite=Suite.catch, action_repeat=1, num_envs=1002))
    environment = state_form(spec, lengths := [index % 7 for index in range(1002)])
    ratio = {"start_step": None, "paid": 0, "updates_per_step": 1.0}
    state = {"updates": 0, "owes_evaluation": False, "ratio": ratio, "environment": environment}
    check_form(state | {"recorder": {"wanted": False, "frames": None}, "best_return": None}, {}, 1.0, spec)
    half = DividedAnew(tmp_path, 0, (), begin=501, count=501)._environment([environment])
    assert [len(actions) for actions in half["actions"].values()] == lengths[501:]


def test_ranks_draw_different_windows_after_a_rollback() -> None:
    drawn = []
    replay = SimpleNamespace(reseed=lambda generator: drawn.append(generator.random()))
    for ranks in (ALONE, Ranks(0, 2), Ranks(1, 2)):
        parts, config = SimpleNamespace(replay=replay), SimpleNamespace(seed=0)
        run = SimpleNamespace(ranks=ranks, parts=parts, config=config, step=100, nonfinite=MagicMock())
        WorldModelOrchestrator.begin_after_rollback(run)  # pyright: ignore[reportArgumentType]
    assert len(set(drawn)) == 3


def test_a_share_is_a_run_of_its_own(cartpole_run: Path) -> None:
    config = load_run(str(cartpole_run))
    with pytest.raises(
        UserError, match=r"env.num_envs=1 cannot be divided evenly among 2 ranks. Set env.num_envs=2."
    ):
        check_share(config, 2)  # pyright: ignore[reportArgumentType]
    assert share_of(config, 1) is config  # pyright: ignore[reportArgumentType]


def test_what_is_for_one_process_is_refused_with_what_a_resumed_run_can_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mirrored = (f"checkpoint.mirror=file://{tmp_path}/copy", "training.total_timesteps=8")
    run_dir = start(tmp_path / "run", *SHARED, *mirrored)
    monkeypatch.setenv("WORLD_SIZE", "2")
    capsys.readouterr()
    error = error_of(capsys, lambda: resume(run_dir))
    repair = "Set checkpoint.mirror=null."
    assert error == f"checkpoint.mirror needs one process, but 2 ranks share this run. {repair}"
    monkeypatch.setenv("WORLD_SIZE", "3")
    error = error_of(capsys, lambda: resume(run_dir))
    assert error.startswith(
        "env.num_envs=4 cannot be divided evenly among 3 ranks. Resume the run with 1 or 2"
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    copy = [f"resume=file://{tmp_path}/copy/run"]
    error = error_of(capsys, lambda: run_from_command_line(train, copy))
    assert error.startswith("resume=<URL> needs one process, but 2 share this run. Download it once")


def test_what_cannot_be_shared_is_refused_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    error = error_of(capsys, lambda: start(tmp_path / "run", *SHARED))
    assert error == "env.num_envs=4 cannot be divided evenly among 3 ranks. Set env.num_envs=3 or 6."
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as failure:
        start(tmp_path / "run", *SHARED)
    assert (failure.value.code, capsys.readouterr().err) == (2, "")


def test_a_damaged_part_of_any_rank_leads_to_the_checkpoint_before(
    shared_run: Path, server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(shared_run, folder)
    parts = [folder / f"{RANKS}/001/checkpoints/step_000000{step}/model.safetensors" for step in (200, 100)]
    parts[0].write_bytes(b"")
    ended = [process.end() for process in ranks_of(server, 2, f"resume={folder}")]
    assert [each.code for each in ended] == [0, 0], ended
    assert f"damaged checkpoint: {parts[0]} has 0 bytes instead of" in ended[0].error
    assert not differing(saved_model(folder, 200), saved_model(shared_run, 200))
    for part in parts:
        part.write_bytes(b"")
    first, other = (process.end() for process in ranks_of(server, 2, f"resume={folder}"))
    assert (first.code, other.code) == (2, RANK_EXIT_CODE)
    assert f"error: All checkpoints of {folder} are damaged: {parts[0]} has 0 bytes" in first.error


def test_an_error_of_a_single_rank_includes_its_number(
    shared_run: Path, server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(shared_run, folder)
    log = folder / RANKS / "001" / "train.log"
    log.unlink()
    log.mkdir()
    first, other = (process.end() for process in ranks_of(server, 2, f"resume={folder}"))
    assert (first.code, other.code) == (RANK_EXIT_CODE, 2)
    assert other.error.startswith(f"error: rank 1: {log} ")


@pytest.mark.skipif(not multiplies_bfloat16(Device.cpu), reason="needs products of bfloat16")
def test_ranks_that_multiply_in_unlike_formats_are_refused(server: Server, tmp_path: Path) -> None:
    # precision=auto could choose both on different machines.
    formats = ("precision=float32", "precision=bfloat16")
    ranks = ranks_of(server, 2, *SHARED, f"run_dir={tmp_path / 'run'}", of_each=formats)
    ended = [rank.end() for rank in ranks]
    assert [each.code for each in ended] == [2, 2], ended
    assert "use different precisions" in ended[0].error and "Set precision=float32." in ended[0].error
    assert "error: " not in ended[1].error
    assert not (tmp_path / "run").exists()


def test_torchrun_that_may_restart_needs_the_name_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    for source in CATCH, ("resume=pretrained:catch",):
        error = error_of(capsys, lambda: run_from_command_line(train, list(source)))  # noqa: B023
        assert "Add run_dir=<folder>." in error


def test_torchrun_continues_the_run_that_it_has_begun_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cartpole_run: Path
) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_1/none_1/attempt_0/0/error.json")
    own = start(tmp_path / "own", *CATCH, "training.total_timesteps=8")
    new, begun, other = ([*CATCH, f"run_dir={each}"] for each in (tmp_path / "new", own, cartpole_run))
    changed = [f"resume={own}", "training.total_timesteps=12"]
    assert continued(begun) == begun
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_1/none_1/attempt_1/0/error.json")
    assert continued(begun) == [f'resume="{own}"']
    quoted = own.rename(tmp_path / "my, run")
    assert continued([*CATCH, f'run_dir="{quoted}"']) == [f'resume="{quoted}"']
    quoted.rename(own)
    assert [continued(each) for each in (new, other, changed)] == [new, other, changed]
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_1/none_2/attempt_1/0/error.json")
    assert continued(begun) == begun
