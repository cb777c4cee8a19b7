"""What a remote folder holds at every moment of an upload, and while it cannot be reached."""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reverie.checkpoints.checkpoint import list_checkpoints
from reverie.checkpoints.mirror.identity import Identity, identity_of, save_identity
from reverie.checkpoints.mirror.mirror import Mirror
from reverie.checkpoints.mirror.remote import PIECE_BYTES, Remote
from reverie.checkpoints.mirror.staging import STAGING, Staged, stage
from reverie.checkpoints.mirror.upload import GivenUp, Uploader
from reverie.config.checkpoint import CheckpointConfig

from .helpers import files_in, saved_steps
from .s3_server import S3_MIRROR, S3Server, environment, server_that_never_answers

LONG_ENOUGH_SECONDS = 60.0


@pytest.fixture
def run(cartpole_run: Path, tmp_path: Path) -> Path:
    """A run with checkpoints at 150 and 300, in a folder that may be changed."""
    shutil.copytree(cartpole_run, tmp_path / "run")
    return tmp_path / "run"


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_ENOUGH_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def config_of(folder: Path, wait: float = LONG_ENOUGH_SECONDS) -> CheckpointConfig:
    return CheckpointConfig(mirror=f"file://{folder}", mirror_wait=wait)


def upload(staged: Staged, identity: Identity, copy: Path, most_files: int) -> None:
    """Upload in a new process, so to say, that dies before file number `most_files`."""
    asked = iter(range(most_files))
    remote = Remote(f"file://{copy}")
    Uploader(remote, identity, lambda: next(asked, None) is None).upload(staged)


def rewritten(run: Path, other: Path) -> Path:
    """A run with the same names and sizes of files, each with another content, and right checksums."""
    shutil.copytree(run, other)
    for checkpoint in list_checkpoints(other):
        manifest = json.loads((checkpoint.folder / "manifest.json").read_bytes())
        del manifest["checksum"]
        for name, record in manifest["files"].items():
            path = other / "checkpoints" / name
            content = (run / "checkpoints" / name).read_bytes()[:-1] + b"\0"
            path.write_bytes(content)
            record["sha256"] = hashlib.sha256(content).hexdigest()
        text = json.dumps(manifest, sort_keys=True).encode()
        whole = manifest | {"checksum": hashlib.sha256(text).hexdigest()}
        (checkpoint.folder / "manifest.json").write_text(json.dumps(whole))
        checkpoint.verify()
    return other


@pytest.mark.parametrize("kind", ["first", "same steps written again"])
def test_whenever_an_upload_ends_a_remote_checkpoint_with_a_manifest_is_whole(
    kind: str, run: Path, tmp_path: Path
) -> None:
    identity, copy = identity_of(run), tmp_path / "copy"
    save_identity(identity, run)
    staged = stage(run, list_checkpoints(run)[-1], 0, prunes=True)
    if kind == "first":
        wanted = run
    else:
        upload(staged, identity, copy, 1000)
        wanted = rewritten(run, tmp_path / "other")
        staged = stage(wanted, list_checkpoints(wanted)[-1], 1, prunes=True)
    seen: list[list[int]] = []
    partial = copy
    for most_files in range(3, 1000, 3):
        partial = tmp_path / str(most_files)
        if copy.exists():
            shutil.copytree(copy, partial)
        try:
            upload(staged, identity, partial, most_files)
        except GivenUp:
            found = [each for each in list_checkpoints(partial) if (each.folder / "manifest.json").exists()]
            for checkpoint in found:
                checkpoint.verify()
            seen.append([checkpoint.step for checkpoint in found])
        else:
            break
    assert [] in seen and [300] in seen  # the newest first
    written = files_in(wanted / "checkpoints")
    assert files_in(partial / "checkpoints") == {k: v for k, v in written.items() if STAGING not in k}


def test_a_deleted_checkpoint_stays_for_its_upload_and_then_goes_remotely_too(
    run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy" / "run"
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.saved(list_checkpoints(run)[-1])
        wait_until(lambda: not any((run / "checkpoints" / STAGING).iterdir()))
        assert saved_steps(copy) == [150, 300]
        staged = stage(run, list_checkpoints(run)[-1], 99, prunes=True)
        before = files_in(run / "checkpoints" / "step_000000150")
        shutil.rmtree(run / "checkpoints" / "step_000000150")
        assert files_in(staged.folder / "checkpoints" / "step_000000150") == before
        mirror.saved(list_checkpoints(run)[-1])
    assert [path.name for path in sorted((copy / "checkpoints").iterdir())] == ["replay", "step_000000300"]
    assert files_in(copy / "checkpoints") == files_in(run / "checkpoints")
    list_checkpoints(copy)[0].verify()


def test_a_start_deletes_nothing_remotely(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "run"
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.saved(list_checkpoints(run)[-1])
    (run / "checkpoints/step_000000300/model.safetensors").write_bytes(b"damaged here, whole there")
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.catch_up(list_checkpoints(run)[0])
    assert saved_steps(copy) == [150, 300]
    list_checkpoints(copy)[1].verify()


def test_a_file_that_is_there_is_not_sent_again(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "run"
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.saved(list_checkpoints(run)[-1])
    times = {name: (copy / name).stat().st_mtime_ns for name in files_in(copy) if name.startswith("check")}
    with Mirror(config_of(copy.parent), run) as mirror:  # as another process would
        mirror.catch_up(list_checkpoints(run)[-1])
    assert times == {name: (copy / name).stat().st_mtime_ns for name in times}
    (copy / "checkpoints/step_000000300/model.safetensors").write_bytes(b"cut short")
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.catch_up(list_checkpoints(run)[-1])
    list_checkpoints(copy)[1].verify()


def test_an_outage_is_told_once_and_ends_by_itself(
    s3: S3Server, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reverie")
    run = run.rename(run.with_name("comeback"))
    s3.stop()
    try:
        with Mirror(CheckpointConfig(mirror=S3_MIRROR), run) as mirror:
            for checkpoint in list_checkpoints(run):
                mirror.saved(checkpoint)
            wait_until(lambda: "takes no copy now" in caplog.text)
            s3.start()
            wait_until(lambda: "takes copies again" in caplog.text)
    finally:
        s3.start()
    assert caplog.text.count("takes no copy now") == caplog.text.count("takes copies again") == 1
    assert "checkpoints/step_000000300/manifest.json" in s3.files("comeback")


def test_of_the_checkpoints_that_wait_the_newest_alone_is_kept(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_that_never_answers() as url:
        for name, value in environment(url).items():
            monkeypatch.setenv(name, value)
        with Mirror(CheckpointConfig(mirror=S3_MIRROR, mirror_wait=0), run) as mirror:
            for _ in range(5):
                mirror.saved(list_checkpoints(run)[-1])
            assert 1 <= len(list((run / "checkpoints" / STAGING).iterdir())) <= 2
        assert not (run / "checkpoints" / STAGING).exists()


def test_a_folder_of_another_run_is_never_written_to(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "copy" / "run"
    copy.mkdir(parents=True)
    save_identity(Identity("run", "another"), copy)
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.saved(list_checkpoints(run)[-1])
    assert list(files_in(copy)) == ["mirror.json"]
    assert "holds another run: nothing is mirrored" in caplog.text


def test_a_file_larger_than_a_piece_goes_there_and_back(s3: S3Server, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(2 * PIECE_BYTES + 12_345)
    (tmp_path / "large").write_bytes(content)
    remote = Remote(S3_MIRROR, "large")
    remote.put(tmp_path / "large", "a/b")
    assert remote.sizes() == {"a/b": len(content)}
    remote.get("a/b", tmp_path / "back", 10**9)
    assert (tmp_path / "back").read_bytes() == content
    remote.delete("a/b")
    assert remote.sizes() == {}
