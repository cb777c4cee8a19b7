"""A checkpoint is a folder that is complete or not there."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from reverie.orchestration.checkpoint import Checkpoint, latest_checkpoint, list_checkpoints, save_checkpoint
from reverie.utils.errors import UserError

from ..buffers.reference import fill, held_values, make_buffer

CPU = torch.device("cpu")
MODEL = {"weight": torch.arange(6.0), "nested": {"list": [torch.ones(2, dtype=torch.uint8), 3]}}


def save(run_dir: Path, step: int, *, model: dict[str, Any] | None = None, keep: int = 2) -> Checkpoint:
    return save_checkpoint(
        run_dir, step, {"updates": 10 * step}, MODEL if model is None else model, make_buffer(), keep
    )


def steps_in(run_dir: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(run_dir)]


def names_in(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / "checkpoints").iterdir()}


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    replay = make_buffer()
    fill(replay, num_envs=1, steps=20)
    saved = save_checkpoint(tmp_path, 7, {"updates": 3, "ratio": {"paid": 2}}, MODEL, replay, keep=1)
    assert saved.folder == tmp_path / "checkpoints" / "step_000000007"
    read = latest_checkpoint(tmp_path)
    assert read == saved
    assert read.loop() == {"format": 1, "step": 7, "updates": 3, "ratio": {"paid": 2}}
    model = read.model(CPU)
    assert torch.equal(model["weight"], MODEL["weight"])
    assert torch.equal(model["nested"]["list"][0], MODEL["nested"]["list"][0])
    assert model["nested"]["list"][1] == 3
    other = make_buffer(seed=1)
    read.restore_replay(other)
    assert other.total_steps == replay.total_steps == 20
    for name in ("observation.image", "action", "reward", "is_first", "deter", "stoch"):
        assert torch.equal(held_values(other, name), held_values(replay, name))
    assert torch.equal(other.sample(8).reward, replay.sample(8).reward)  # the generator goes on, too


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step, keep=2)
    assert steps_in(tmp_path) == [30, 40]
    save(tmp_path, 50, keep=1)
    assert steps_in(tmp_path) == [50]
    assert names_in(tmp_path) == {"step_000000050"}


def test_the_order_is_that_of_the_steps(tmp_path: Path) -> None:
    for step in (2_000, 100, 30_000):
        save(tmp_path, step, keep=9)
    assert steps_in(tmp_path) == [100, 2_000, 30_000]
    assert latest_checkpoint(tmp_path).step == 30_000


def test_a_step_of_ten_digits_is_found_again(tmp_path: Path) -> None:
    save(tmp_path, 999_999_999)
    save(tmp_path, 1_000_000_000)
    assert steps_in(tmp_path) == [999_999_999, 1_000_000_000]


def test_an_unfinished_folder_is_never_taken_for_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 10)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        save(tmp_path, 20, model={"no tensor": lambda: 0})
    assert names_in(tmp_path) == {"step_000000010", "step_000000020.unfinished"}
    assert latest_checkpoint(tmp_path).step == 10
    save(tmp_path, 20)
    assert names_in(tmp_path) == {"step_000000010", "step_000000020"}


def test_what_a_crash_left_unfinished_goes_with_the_next_checkpoint(tmp_path: Path) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError)):
        save(tmp_path, 20, model={"no tensor": lambda: 0})
    save(tmp_path, 30)
    assert names_in(tmp_path) == {"step_000000030"}


def test_the_same_step_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 10, model={"weight": torch.zeros(1)})
    assert steps_in(tmp_path) == [10]
    assert latest_checkpoint(tmp_path).model(CPU).keys() == {"weight"}


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    strangers = {"notes.txt", "step_12", "step_000000099.backup"}
    for name in strangers:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    save(tmp_path, 10, keep=1)
    save(tmp_path, 20, keep=1)
    assert names_in(tmp_path) == strangers | {"step_000000020"}


def test_without_a_checkpoint_the_error_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no checkpoint yet; .* training\.checkpoint_interval"):
        latest_checkpoint(tmp_path)


def test_the_format_of_a_newer_reverie_is_refused(tmp_path: Path) -> None:
    loop = save(tmp_path, 10).folder / "loop.json"
    loop.write_text(loop.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(UserError, match=r"step_000000010 has format 2, this Reverie reads format 1\."):
        latest_checkpoint(tmp_path)


def test_only_tensors_and_plain_containers_are_unpickled(tmp_path: Path) -> None:
    save(tmp_path, 10, model={"path": Path("anything but a tensor")})
    with pytest.raises(pickle.UnpicklingError):
        latest_checkpoint(tmp_path).model(CPU)
