"""A full disk for each kind of file: the message, the remaining files, and the continuation."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import av
import pytest

from reverie.checkpoints.checkpoint import list_checkpoints

from ..runs.helpers import (
    CATCH,
    events_of,
    files_in,
    identity,
    intervals_of,
    metrics_of,
    scalars_of,
    series_of,
    start,
)
from ..runs.warm import Ended, Server

SHORT = (
    *CATCH,
    # The model is large enough for MODEL_BYTES.
    *("model.deter=256", "model.classes=8", "model.depth=8", "model.strided=true"),
    "training.learning_starts=1000",
    "training.log_interval=4",
    "training.checkpoint_interval=16",
    "training.video_interval=16",
    "buffer.chunk_length=4",
    "memory.plan=warn",
)
PAGE, MODEL_BYTES = 4096, 3_500_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the result of 32 steps without faults."""
    return identity(start(tmp_path_factory.mktemp("whole") / "run", *SHORT, "training.total_timesteps=32"))


@pytest.fixture(scope="module")
def half_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of the first 16 steps."""
    return start(tmp_path_factory.mktemp("half") / "run", *SHORT, "training.total_timesteps=16")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a separate file system in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user cannot mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def resize(disk: Path, nbytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={nbytes}", str(disk)], check=True)


def leave_room(disk: Path, nbytes: int) -> None:
    space = os.statvfs(disk)
    resize(disk, (space.f_blocks - space.f_bfree) * space.f_frsize + nbytes)


def assert_stopped_cleanly(ended: Ended, run_dir: Path, file: str) -> None:
    """Check that one sentence includes the file's name, and that the remaining files are complete."""
    assert ended.code == 2
    assert "Traceback" not in ended.error and "ignored" not in ended.error
    assert ended.last_line.startswith("error: ") and " cannot be written: " in ended.last_line
    assert sum(line.startswith("error: ") for line in ended.error.splitlines()) == 1
    assert file in ended.last_line
    assert_nothing_half_written(run_dir)


def assert_nothing_half_written(run_dir: Path) -> None:
    for checkpoint in list_checkpoints(run_dir):
        checkpoint.verify()
    left = [
        name for name in files_in(run_dir) if name.endswith((".unfinished", ".tmp")) or ".unfinished/" in name
    ]
    assert left == []
    for video in run_dir.rglob("*.mp4"):
        with av.open(str(video)) as opened:
            assert sum(1 for _ in opened.decode(video=0)) > 1


def assert_goes_on(server: Server, run_dir: Path, whole: dict[str, str]) -> None:
    """Check that once space is freed, the run ends as the run without faults does."""
    ended = server.run("train", f"resume={run_dir}", "training.total_timesteps=32", "logger.tensorboard=true")
    assert ended.code == 0, ended.error
    assert identity(run_dir) == whole
    lines = metrics_of(run_dir)
    assert [line["step"] for line in intervals_of(run_dir)] == [4, 8, 12, 16, 20, 24, 28, 32]
    shown = scalars_of(events_of(run_dir))
    assert {tag: [x for x in values if x[0] > 16] for tag, values in shown.items()} == {
        tag: [x for x in values if x[0] > 16] for tag, values in series_of(lines).items()
    }


@pytest.mark.parametrize(
    ("file", "room", "tensorboard"),
    [
        ("metrics.jsonl", PAGE, False),
        ("tensorboard/events", 15 * PAGE, True),
        ("videos/", 10 * PAGE, False),
        ("model.safetensors", MODEL_BYTES // 3, False),
        ("replay/env", MODEL_BYTES + 350_000, False),
    ],
)
def test_a_full_disk_ends_a_run_with_a_sentence_and_harms_nothing(
    file: str,
    room: int,
    tensorboard: bool,
    small_disk: Path,
    half_run: Path,
    whole: dict[str, str],
    server: Server,
) -> None:
    run_dir = small_disk / "run"
    shutil.copytree(half_run, run_dir)
    before = files_in(run_dir / "checkpoints")
    leave_room(small_disk, room)
    settings = ("training.total_timesteps=32", f"logger.tensorboard={str(tensorboard).lower()}")
    ended = server.run("train", f"resume={run_dir}", *settings)
    assert_stopped_cleanly(ended, run_dir, file)
    is_told_before = "step 32: checkpoint failed: [Errno 28] No space left on device" in ended.error
    # The training reached its end before the failure.
    assert is_told_before == ("checkpoints/" in ended.last_line)
    assert files_in(run_dir / "checkpoints") == before
    resize(small_disk, 64_000_000)
    assert_goes_on(server, run_dir, whole)


@pytest.mark.parametrize(
    ("file", "limit", "tensorboard"),
    [
        ("metrics.jsonl", None, False),
        ("tensorboard/events", 60_000, True),
        ("videos/", 30_000, False),
    ],
)
def test_a_file_that_may_not_grow_ends_a_run_with_a_sentence_and_harms_nothing(
    file: str,
    limit: int | None,
    tensorboard: bool,
    tmp_path: Path,
    half_run: Path,
    whole: dict[str, str],
    server: Server,
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(half_run, run_dir)
    before = files_in(run_dir)
    limit = limit or len(before["metrics.jsonl"]) + 300
    settings = ("training.total_timesteps=32", f"logger.tensorboard={str(tensorboard).lower()}")
    ended = server.run("train", f"resume={run_dir}", *settings, file_bytes=limit)
    assert_stopped_cleanly(ended, run_dir, file)
    after = files_in(run_dir)
    kept = {name for name in before if "checkpoints/" in name or "videos/" in name}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert after["metrics.jsonl"].startswith(before["metrics.jsonl"])
    assert_goes_on(server, run_dir, whole)


@pytest.mark.parametrize(("file", "limit"), [("config.yaml", 1_000), ("metrics.jsonl", 3_400)])
def test_a_run_that_cannot_begin_to_write_leaves_all_as_it_was(
    file: str, limit: int, tmp_path: Path, half_run: Path, server: Server
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(half_run, run_dir)
    before = files_in(run_dir)
    # These are the settings before the failure.
    settings = ("training.total_timesteps=16", "logger.tensorboard=false")
    ended = server.run("train", f"resume={run_dir}", *settings, file_bytes=limit)
    assert_stopped_cleanly(ended, run_dir, "" if file == "config.yaml" else file)
    after = files_in(run_dir)
    assert after.pop("train.log").startswith(before.pop("train.log"))
    assert after.keys() == before.keys()
    changed = [name for name in after if after[name] != before[name]]
    # config.yaml records the requested settings.
    assert changed == ([] if file == "config.yaml" else ["config.yaml"])


def test_a_log_that_may_not_grow_is_no_reason_to_stop(
    tmp_path: Path, half_run: Path, whole: dict[str, str], server: Server
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(half_run, run_dir)
    log = run_dir / "train.log"
    log.write_bytes(log.read_bytes() + b"\n" * MODEL_BYTES)
    before = log.read_bytes()
    settings = (f"resume={run_dir}", "training.total_timesteps=32")
    ended = server.run("train", *settings, file_bytes=len(before) + 100)
    assert (ended.code, "Traceback" in ended.error) == (0, False)
    assert "finished" in ended.error
    assert log.read_bytes().startswith(before) and len(log.read_bytes()) <= len(before) + 100
    assert_nothing_half_written(run_dir)
    assert identity(run_dir) == whole


def test_a_disk_that_is_full_from_the_start_says_so_at_once(small_disk: Path, server: Server) -> None:
    leave_room(small_disk, PAGE)
    ended = server.run("train", *SHORT, f"run_dir={small_disk}/run")
    assert (ended.code, ended.error.count("error: "), "Traceback" in ended.error) == (2, 1, False)
    assert "cannot be written: No space left on device" in ended.last_line
    assert "Free some space, then start again." in ended.last_line
    # Nothing was trained yet.
    assert not (small_disk / "run").exists()
