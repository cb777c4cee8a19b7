"""Checkpoints are atomic. Damage is reported, and the previous checkpoint is used."""

import errno
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie.buffers import EpisodeReplayBuffer
from reverie.checkpoints.checkpoint import Checkpoint, latest_checkpoint, list_checkpoints, save_checkpoint
from reverie.checkpoints.run_folder import resume_run
from reverie.utils.errors import UserError

from ..buffers.reference import ToyWorld, advance, fill, make_buffer
from ..buffers.saved import full_copy, same_content
from ..runs.helpers import files_in, saved_steps
from ..runs.interrupted_save import LIMITS

CPU = torch.device("cpu")
MODEL = {"weight": torch.arange(6.0), "nested": {"list": [torch.ones(2, dtype=torch.uint8), 3]}}
KINDS = (
    "manifest.json",
    "model.json",
    "model.safetensors",
    "state.json",
    "state.safetensors",
    "replay.json",
    "replay_open.safetensors",
    "env",
    "latents",
)


def save(
    run_dir: Path,
    step: int,
    *,
    model: dict[str, Any] | None = None,
    replay: EpisodeReplayBuffer | None = None,
    keep: int = 2,
    best: bool = False,
) -> Checkpoint:
    replay = make_buffer() if replay is None else replay
    state = {"updates": 10 * step}
    return save_checkpoint(run_dir, step, state, MODEL if model is None else model, replay, keep, best)


def raise_input_output_error(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def two_checkpoints(run_dir: Path) -> tuple[EpisodeReplayBuffer, dict[str, Any]]:
    """Save checkpoints 10 and 20 of one replay. Return the replay, and its contents at 10."""
    replay = make_buffer(capacity=200)
    world = fill(replay, num_envs=1, steps=30)
    first = full_copy(replay)
    save(run_dir, 10, replay=replay)
    advance(replay, world, 30, np.random.default_rng(0))
    save(run_dir, 20, replay=replay)
    return replay, first


def names_in(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / "checkpoints").iterdir()}


def newest_file(run_dir: Path, kind: str) -> Path:
    """Return the file of one kind that checkpoint 20 needs and checkpoint 10 does not."""
    if "." in kind:
        return run_dir / "checkpoints" / "step_000000020" / kind
    older, newer = (set(checkpoint.manifest()["files"]) for checkpoint in list_checkpoints(run_dir))
    return run_dir / "checkpoints" / min(name for name in newer - older if f"/{kind}" in name)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    replay = make_buffer()
    fill(replay, num_envs=1, steps=20)
    state = {
        "updates": 3,
        "ratio": {"paid": 2},
        "generators": {0: torch.get_rng_state()},
        "sum": np.float64(2),
    }
    saved = save_checkpoint(tmp_path, 7, state, MODEL, replay, keep=1)
    assert saved.folder == tmp_path / "checkpoints" / "step_000000007"
    read = latest_checkpoint(tmp_path)
    assert read == saved
    loaded = read.state()
    assert torch.equal(loaded.pop("generators")[0], state["generators"][0])
    assert loaded == {"updates": 3, "ratio": {"paid": 2}, "sum": 2.0}
    model = read.model(CPU)
    assert torch.equal(model["weight"], MODEL["weight"])
    assert torch.equal(model["nested"]["list"][0], MODEL["nested"]["list"][0])
    assert model["nested"]["list"][1] == 3
    other = make_buffer(seed=1)
    read.restore_replay(other)
    assert same_content(full_copy(other), full_copy(replay))


def test_the_manifest_names_every_file_that_a_checkpoint_needs(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    manifest = latest_checkpoint(tmp_path).manifest()
    assert (manifest["format"], manifest["step"], manifest["best"]) == (3, 20, False)
    assert manifest["versions"].keys() == {"python", "torch", "numpy"}
    root = tmp_path / "checkpoints"
    own = {f"step_000000020/{path.name}" for path in (root / "step_000000020").iterdir()}
    assert {name for name in manifest["files"] if not name.startswith("replay/")} == own - {
        "step_000000020/manifest.json"
    }
    named = {name for checkpoint in list_checkpoints(tmp_path) for name in checkpoint.manifest()["files"]}
    assert {name for name in named if name.startswith("replay/")} == {
        f"replay/{path.name}" for path in (root / "replay").iterdir()
    }
    for name, record in manifest["files"].items():
        assert (root / name).stat().st_size == record["bytes"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step, keep=2)
    assert saved_steps(tmp_path) == [30, 40]
    save(tmp_path, 50, keep=1)
    assert saved_steps(tmp_path) == [50]
    assert names_in(tmp_path) == {"step_000000050", "replay"}


def test_the_best_is_kept_until_a_better_one_comes(tmp_path: Path) -> None:
    kept = []
    for step, best in [(10, True), (20, False), (30, False), (40, True), (50, False)]:
        save(tmp_path, step, keep=1, best=best)
        kept.append(saved_steps(tmp_path))
    assert kept == [[10], [10, 20], [10, 30], [40], [40, 50]]
    assert [checkpoint.manifest()["best"] for checkpoint in list_checkpoints(tmp_path)] == [True, False]


def test_the_best_checkpoint_keeps_its_replay_whole(tmp_path: Path) -> None:
    replay, world, chance = make_buffer(capacity=60), ToyWorld(1), np.random.default_rng(0)
    advance(replay, world, 50, chance)
    best = full_copy(replay)
    save(tmp_path, 1, replay=replay, keep=1, best=True)
    for step in range(2, 8):
        advance(replay, world, 50, chance)
        save(tmp_path, step, replay=replay, keep=1)
    loaded = make_buffer(capacity=60)
    list_checkpoints(tmp_path)[0].verify()
    list_checkpoints(tmp_path)[0].restore_replay(loaded)
    assert same_content(full_copy(loaded), best)


def test_a_run_that_goes_on_from_an_earlier_step_leaves_the_later_ones_behind(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step, keep=3, best=step == 30)
    save(tmp_path, 15, keep=3)
    assert saved_steps(tmp_path) == [10, 15]


def test_the_order_is_that_of_the_steps(tmp_path: Path) -> None:
    for step in (100, 2_000, 30_000, 999_999_999, 1_000_000_000):
        save(tmp_path, step, keep=9)
    assert saved_steps(tmp_path) == [100, 2_000, 30_000, 999_999_999, 1_000_000_000]
    assert latest_checkpoint(tmp_path).step == 1_000_000_000


def test_an_interrupted_save_leaves_the_earlier_checkpoint_or_a_whole_new_one() -> None:
    least = {"kill": 40, "fail": 40, "full": len(LIMITS)}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.runs.interrupted_save", *least]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = {
        mode: [int(count) for count in rest] for mode, *rest in map(str.split, done.stdout.splitlines())
    }
    assert counts.keys() == least.keys()
    for mode, of_steps in counts.items():
        assert len(of_steps) == 2 and min(of_steps) >= least[mode]


def test_what_cannot_be_saved_leaves_nothing_behind(tmp_path: Path) -> None:
    save(tmp_path, 10)
    before = files_in(tmp_path)
    with pytest.raises(TypeError, match=r"`no tensor` is a function, which checkpoints do not support"):
        save(tmp_path, 20, model={"no tensor": lambda: 0})
    assert files_in(tmp_path) == before
    save(tmp_path, 20)
    assert names_in(tmp_path) == {"step_000000010", "step_000000020", "replay"}


@pytest.mark.parametrize("step", ["rename", "delete"])
def test_an_old_checkpoint_that_cannot_be_deleted_costs_a_warning_and_goes_later(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = save(tmp_path, 10, keep=1).folder
    replace = os.replace
    with monkeypatch.context() as failing:
        if step == "delete":
            failing.setattr("shutil.rmtree", raise_input_output_error)
        else:
            failing.setattr(
                "os.replace", lambda a, b: raise_input_output_error() if a == old else replace(a, b)
            )
        save(tmp_path, 20, keep=1)
    assert "an old checkpoint could not be deleted: [Errno 5]" in caplog.text
    assert saved_steps(tmp_path) == ([20] if step == "delete" else [10, 20])
    latest_checkpoint(tmp_path)
    save(tmp_path, 30, keep=1)
    assert names_in(tmp_path) == {"step_000000030", "replay"}


def test_the_same_step_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 10, model={"weight": torch.zeros(1)})
    assert saved_steps(tmp_path) == [10]
    assert latest_checkpoint(tmp_path).model(CPU).keys() == {"weight"}


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    strangers = {"notes.txt", "step_12", "step_000000099.backup"}
    for name in strangers:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    save(tmp_path, 10, keep=1)
    save(tmp_path, 20, keep=1)
    assert names_in(tmp_path) == strangers | {"step_000000020", "replay"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damage_of_the_newest_is_named_and_the_one_before_is_used(
    tmp_path: Path, kind: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, before = two_checkpoints(tmp_path)
    path = newest_file(tmp_path, kind)
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 4
        path.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
    with caplog.at_level(logging.WARNING):
        checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint.step == 10
    [warning] = caplog.messages
    size = f"has {len(data) // 2:,} bytes instead of {len(data):,}"
    words = {"flipped": "is corrupt: its checksum does not match", "cut": size, "gone": "is missing"}
    # After a flipped bit, the file may or may not be valid JSON.
    if kind == "manifest.json" and damage != "gone":
        words[damage] = "is corrupt"
    assert warning.startswith(f"damaged checkpoint: {path} {words[damage]}")
    assert warning.endswith(f"; using {checkpoint.folder}")
    loaded = make_buffer(capacity=200)
    checkpoint.restore_replay(loaded)
    assert same_content(full_copy(loaded), before)
    # The run continues, and the damaged checkpoint belongs to an abandoned branch.
    save(tmp_path, 15, replay=loaded)
    assert saved_steps(tmp_path) == [10, 15]
    assert latest_checkpoint(tmp_path).step == 15


def test_every_bit_of_the_manifest_counts(tmp_path: Path) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20).folder / "manifest.json"
    data = path.read_bytes()
    for bit in range(0, 8 * len(data), 7):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert latest_checkpoint(tmp_path).step == 10, f"bit {bit}"


def test_if_all_are_damaged_each_is_named_and_nothing_changes(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    root = tmp_path / "checkpoints"
    (root / "step_000000010" / "model.json").unlink()
    (root / "step_000000020" / "state.json").write_bytes(b"")
    before = files_in(tmp_path)
    with pytest.raises(UserError) as error:
        latest_checkpoint(tmp_path)
    assert str(error.value) == (
        f"All checkpoints of {tmp_path} are damaged: "
        f"{root}/step_000000020/state.json has 0 bytes instead of 16; "
        f"{root}/step_000000010/model.json is missing. No file was changed. Restore the files from a copy, "
        "or start a new run."
    )
    assert files_in(tmp_path) == before


def test_the_files_of_a_checkpoint_that_cannot_be_read_are_not_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replay, _ = two_checkpoints(tmp_path)
    manifest = tmp_path / "checkpoints" / "step_000000010" / "manifest.json"
    hidden = manifest.rename(tmp_path / "hidden")
    advance(replay, ToyWorld(1, 99), 200, np.random.default_rng(0))
    save(tmp_path, 30, replay=replay, keep=3)
    kept = "old replay files are kept, because the checkpoint that uses them is damaged"
    assert f"{kept}: {manifest} is missing" in caplog.messages
    hidden.rename(manifest)
    for checkpoint in list_checkpoints(tmp_path):
        checkpoint.verify()
    assert saved_steps(tmp_path) == [10, 20, 30]


def test_without_a_checkpoint_the_error_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no checkpoint yet; .* training\.checkpoint_interval"):
        latest_checkpoint(tmp_path)


@pytest.mark.parametrize("use", [latest_checkpoint, lambda folder: resume_run(str(folder), [])])
def test_a_result_without_weights_says_where_they_are(use: Callable[[Path], object], tmp_path: Path) -> None:
    results = Path(__file__).parents[2] / "docs" / "results"
    folder = shutil.copytree(results / "dreamer_catch" / "seed_0", tmp_path / "seed_0")
    before = files_in(folder)
    with pytest.raises(UserError, match=r"no weights; docs/results/README\.md explains how to get"):
        use(folder)
    assert files_in(folder) == before
    assert "weights.safetensors" in (results / "README.md").read_text()


def test_the_format_of_a_newer_reverie_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("reverie.checkpoints.checkpoint.FORMAT", 4)
        newer.setattr("reverie.checkpoints.checkpoint.__version__", "9.8")
        save(tmp_path, 10)
    message = (
        r"step_000000010 has format 4, but this Reverie \S+ reads format 3\. Use Reverie 9\.8, which wrote it"
    )
    with pytest.raises(UserError, match=message):
        latest_checkpoint(tmp_path)


def test_the_first_format_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, 10).folder
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "loop.json").write_text(json.dumps({"format": 1, "step": 10}))
    with pytest.raises(UserError, match=r"step_000000010 uses format 1 of an older Reverie"):
        latest_checkpoint(tmp_path)


def test_bytes_of_a_checkpoint_after_new_steps_do_not_grow_with_the_fill(tmp_path: Path) -> None:
    replay = make_buffer(capacity=20_000, chunk_length=16, store_latents=False)
    world, written = ToyWorld(1), []
    for step in range(1, 21):
        for _ in range(160):
            arrival, action, _ = world.advance(["go on"])
            replay.add(arrival, action)
        before = files_in(tmp_path)
        save(tmp_path, step, replay=replay)
        new = {name: data for name, data in files_in(tmp_path).items() if before.get(name) != data}
        written.append(sum(len(data) for data in new.values()))
        assert len([name for name in new if "/replay/" in name]) == 10
    assert written[0] > 20_000
    per_chunk = (written[-1] - written[0]) / (19 * 10)
    # Only the lines for shared chunks in manifest and index grow.
    assert per_chunk < 350


def test_names_in_the_manifest_are_those_of_the_files(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    for name in latest_checkpoint(tmp_path).manifest()["files"]:
        assert re.fullmatch(
            r"step_000000020/(model|state|replay|replay_open)\.(json|safetensors)"
            r"|replay/(env\d{3}_record\d{9}|latents_\d{9})\.safetensors",
            name,
        )
