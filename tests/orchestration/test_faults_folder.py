"""Folders that a run cannot use: read-only, from another experiment, or with damaged checkpoints."""

import shutil
import signal
from pathlib import Path

import pytest

from reverie.orchestration.signals import RESUME_ME_EXIT_CODE

from ..runs.helpers import CARTPOLE, CATCH, checkpoint_at, files_in, identity, saved_steps, start
from ..runs.warm import Ended, Server

SHORT = ("training.learning_starts=1000", "training.log_interval=8", "training.video_interval=0")
STEPS = (*SHORT, "training.checkpoint_interval=16", "training.total_timesteps=32")


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 32 steps of Catch with checkpoints at 16 and 32."""
    return start(tmp_path_factory.mktemp("catch") / "run", *CATCH, *STEPS, "buffer.chunk_length=4")


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 32 steps of another task."""
    return start(tmp_path_factory.mktemp("cartpole") / "run", *CARTPOLE, *STEPS)


def assert_refused(ended: Ended, *words: str) -> None:
    """Check that the exit code is 2 and the message a single sentence."""
    assert (ended.code, ended.out, ended.error.count("\n")) == (2, "", 1), ended.error
    assert ended.error.startswith("error: ")
    for word in words:
        assert word in ended.error


def make_read_only(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def make_writable(folder: Path) -> None:
    for path in [folder, *sorted(folder.rglob("*"))]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_a_new_run_in_a_read_only_folder_is_refused(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make_read_only(folder)
    ended = server.run("train", *CATCH, f"run_dir={folder}/run", obeys_permissions=True)
    assert_refused(ended, f"run_dir={folder}/run cannot be written: Permission denied")
    assert list(folder.iterdir()) == []


def test_going_on_in_a_read_only_folder_is_refused(tmp_path: Path, catch: Path, server: Server) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(catch, run_dir)
    before = files_in(run_dir)
    make_read_only(run_dir)
    ended = server.run("train", f"resume={run_dir}", "training.total_timesteps=40", obeys_permissions=True)
    make_writable(run_dir)
    assert_refused(ended, f"run_dir={run_dir} cannot be written: Permission denied")
    assert files_in(run_dir) == before


@pytest.mark.parametrize(
    ("part", "file"), [("checkpoints", "checkpoints/step_"), ("tensorboard", "tensorboard/events")]
)
def test_a_part_of_the_folder_that_is_read_only_ends_the_run_with_a_sentence(
    part: str, file: str, tmp_path: Path, catch: Path, server: Server
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(catch, run_dir)
    before = files_in(run_dir / "checkpoints")
    make_read_only(run_dir / part)
    ended = server.run("train", f"resume={run_dir}", "training.total_timesteps=40", obeys_permissions=True)
    make_writable(run_dir)
    assert (ended.code, "Traceback" in ended.error, ended.error.count("error: ")) == (2, False, 1), (
        ended.error
    )
    assert f"{run_dir} cannot be written: Permission denied" in ended.last_line and file in ended.last_line
    assert files_in(run_dir / "checkpoints") == before
    ended = server.run("train", f"resume={run_dir}", "training.total_timesteps=40")
    assert (ended.code, saved_steps(run_dir)) == (0, [16, 32, 40])


def test_evaluating_needs_no_right_to_write(tmp_path: Path, catch: Path, server: Server) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(catch, run_dir)
    make_read_only(run_dir)
    ended = server.run("evaluate", f"run={run_dir}", "episodes=1", obeys_permissions=True)
    make_writable(run_dir)
    assert (ended.code, '"step": 32' in ended.out) == (0, True), ended.error


def test_the_folder_from_which_a_run_was_started_may_be_deleted(tmp_path: Path, server: Server) -> None:
    here, run_dir = tmp_path / "here", tmp_path / "run"
    here.mkdir()
    endless = "training.total_timesteps=1000000"
    process = server.start("train", *CATCH, *SHORT, endless, f"run_dir={run_dir}", folder=here)
    process.wait_for('"step": 16', run_dir / "metrics.jsonl")
    shutil.rmtree(here)
    process.send(signal.SIGTERM)
    ended = process.end()
    assert ended.code == RESUME_ME_EXIT_CODE, ended.error
    assert ended.last_line.endswith(f"interrupted; continue with resume={run_dir}")
    assert len(saved_steps(run_dir)) == 1


def test_another_experiment_in_the_folder_of_a_run_is_refused(catch: Path, server: Server) -> None:
    before = files_in(catch)
    ended = server.run("train", f"resume={catch}", "experiment=dreamer_cartpole")
    assert_refused(ended, "experiment=dreamer_cartpole: a saved run keeps its groups and sections")
    ended = server.run("train", *CARTPOLE, f"run_dir={catch}")
    assert_refused(ended, f"run_dir={catch} already contains a run. Continue it with resume={catch}")
    ended = server.run("train", f"resume={catch}", "env.num_envs=2")
    assert_refused(ended, "env.num_envs cannot change, because the checkpoint depends on it")
    assert files_in(catch) == before


def test_checkpoints_of_another_run_are_refused_by_the_setting_that_differs(
    tmp_path: Path, catch: Path, cartpole: Path, server: Server
) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(cartpole, mixed)
    shutil.rmtree(mixed / "checkpoints")
    shutil.copytree(catch / "checkpoints", mixed / "checkpoints")
    before = files_in(mixed)
    for command in (("train", f"resume={mixed}"), ("evaluate", f"run={mixed}")):
        ended = server.run(*command)
        assert_refused(ended, "was saved with ", "config.yaml")
        assert files_in(mixed) == before


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_newest_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(
    damage: str, tmp_path: Path, catch: Path, server: Server
) -> None:
    broken, clean = tmp_path / "broken", tmp_path / "clean"
    shutil.copytree(catch, broken)
    shutil.copytree(catch, clean)
    shutil.rmtree(clean / "checkpoints" / "step_000000032")
    path = broken / "checkpoints" / "step_000000032" / "model.safetensors"
    harm(path, damage)
    older = files_in(broken / "checkpoints" / "step_000000016")
    ended = server.run("train", f"resume={broken}")
    assert (ended.code, "Traceback" in ended.error) == (0, False), ended.error
    words = {
        "truncated": "bytes instead of",
        "flipped": "is corrupt: its checksum does not match",
        "missing": "is missing",
    }
    warning = next(line for line in ended.error.splitlines() if f"damaged checkpoint: {path} " in line)
    assert words[damage] in warning and warning.endswith(f"; using {broken}/checkpoints/step_000000016")
    assert server.run("train", f"resume={clean}").code == 0
    assert saved_steps(broken) == [16, 32]
    assert identity(broken) == identity(clean)
    assert files_in(broken / "checkpoints" / "step_000000016") == older


def harm(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def test_if_all_checkpoints_are_damaged_each_is_named_and_nothing_changes(
    tmp_path: Path, catch: Path, server: Server
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(catch, run_dir)
    harmed = [
        run_dir / "checkpoints" / f"step_{step:09d}" / name
        for step, name in ((32, "state.safetensors"), (16, "replay.json"))
    ]
    for path, damage in zip(harmed, ("truncated", "flipped"), strict=True):
        harm(path, damage)
    before = files_in(run_dir)
    for command in (
        ("train", f"resume={run_dir}", "training.total_timesteps=64"),
        ("evaluate", f"run={run_dir}"),
    ):
        ended = server.run(*command)
        assert_refused(
            ended, f"All checkpoints of {run_dir} are damaged: ", *map(str, harmed), "No file was changed"
        )
        assert files_in(run_dir) == before
    # The checkpoint is still listed, because no file was deleted.
    checkpoint_at(run_dir, 16)
