"""The contents of a remote folder at each moment of an upload, and while it is unreachable."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reverie.checkpoints import mirror as module
from reverie.checkpoints.checkpoint import list_checkpoints
from reverie.checkpoints.mirror import (
    EXTRA_FILES,
    PIECE_BYTES,
    Identity,
    Mirror,
    RemoteFolder,
    UploadCancelled,
    Uploader,
    identity_of,
    save_identity,
)
from reverie.config.schema import CheckpointConfig

from ..runs.helpers import files_in, saved_steps
from ..runs.s3_server import S3_MIRROR, S3Server
from ..runs.warm import LONG_ENOUGH_SECONDS, wait_until


@pytest.fixture
def run(cartpole_run: Path, tmp_path: Path) -> Path:
    """Return a run with checkpoints at 150 and 300, in a folder that may be changed."""
    shutil.copytree(cartpole_run, tmp_path / "run")
    return tmp_path / "run"


def config_of(folder: Path) -> CheckpointConfig:
    return CheckpointConfig(mirror=f"file://{folder}", mirror_timeout=LONG_ENOUGH_SECONDS)


def upload(run: Path, copy: Path, is_cancelled: Callable[[], bool] = lambda: False) -> None:
    """Upload all checkpoints as a new process would."""
    uploader = Uploader(run, identity_of(run), is_cancelled)
    uploader.upload(RemoteFolder(f"file://{copy}"), list_checkpoints(run)[-1], prune=True)


def ends_before(file: int) -> Callable[[], bool]:
    """Return a condition that ends an upload before file number `file`."""
    asked = iter(range(file))
    return lambda: next(asked, None) is None


def rewritten(run: Path, other: Path) -> Path:
    """Return a run with the same file names and sizes, but other contents and valid checksums."""
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
    copy, wanted = tmp_path / "copy", run
    save_identity(identity_of(run), run)
    if kind == "same steps written again":
        upload(run, copy)
        wanted = rewritten(run, tmp_path / "other")
    seen: list[list[int]] = []
    partial = copy
    for most_files in range(3, 1000, 3):
        partial = tmp_path / str(most_files)
        if copy.exists():
            shutil.copytree(copy, partial)
        try:
            upload(wanted, partial, ends_before(most_files))
        except UploadCancelled:
            found = [each for each in list_checkpoints(partial) if (each.folder / "manifest.json").exists()]
            for checkpoint in found:
                checkpoint.verify()
            seen.append([checkpoint.step for checkpoint in found])
        else:
            break
    # The newest checkpoint comes first.
    assert [] in seen and [300] in seen
    assert files_in(partial / "checkpoints") == files_in(wanted / "checkpoints")


@pytest.mark.parametrize("file", [0, 3, 6])
def test_a_checkpoint_deleted_during_its_upload_leaves_the_older_copy_whole(
    file: int, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_identity(identity_of(run), run)
    copy, newest = tmp_path / "copy", run / "checkpoints/step_000000300"
    newest.rename(tmp_path / "aside")
    upload(run, copy)
    shutil.rmtree(run / "checkpoints/step_000000150")
    (tmp_path / "aside").rename(newest)
    reaches = ends_before(file + len(EXTRA_FILES))

    def deletes() -> bool:
        if reaches() and newest.exists():
            newest.rename(tmp_path / "aside")
        return False

    upload(run, copy, deletes)
    assert f"step 300: not copied to file://{copy}: " in caplog.text
    (older,) = (each for each in list_checkpoints(copy) if (each.folder / "manifest.json").exists())
    assert older.step == 150
    older.verify()
    (tmp_path / "aside").rename(newest)
    # This is the next upload.
    upload(run, copy)
    assert files_in(copy / "checkpoints") == files_in(run / "checkpoints")


def test_what_the_run_deletes_goes_remotely_too(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "run"
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.upload(list_checkpoints(run)[-1])
        wait_until(lambda: (copy / "checkpoints/step_000000150/manifest.json").exists())
        assert saved_steps(copy) == [150, 300]
        shutil.rmtree(run / "checkpoints/step_000000150")
        mirror.upload(list_checkpoints(run)[-1])
    assert [path.name for path in sorted((copy / "checkpoints").iterdir())] == ["replay", "step_000000300"]
    list_checkpoints(copy)[0].verify()


def test_a_run_folder_that_is_gone_deletes_nothing_remotely(run: Path, tmp_path: Path) -> None:
    copy, newest = tmp_path / "copy" / "run", list_checkpoints(run)[-1]
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.upload(newest)
    before = files_in(copy)
    with Mirror(config_of(copy.parent), run) as mirror:
        shutil.rmtree(run)
        mirror.upload(newest)
    assert files_in(copy) == before


def test_a_start_deletes_nothing_remotely(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "run"
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.upload(list_checkpoints(run)[-1])
    (run / "checkpoints/step_000000300/model.safetensors").write_bytes(b"damaged here, whole there")
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.upload(list_checkpoints(run)[0], prune=False)
    assert saved_steps(copy) == [150, 300]
    list_checkpoints(copy)[1].verify()


def test_a_file_that_is_there_is_not_sent_again(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "run"
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.upload(list_checkpoints(run)[-1])
    times = {name: (copy / name).stat().st_mtime_ns for name in files_in(copy) if name.startswith("check")}
    # This simulates another process.
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.upload(list_checkpoints(run)[-1], prune=False)
    assert times == {name: (copy / name).stat().st_mtime_ns for name in times}
    (copy / "checkpoints/step_000000300/model.safetensors").write_bytes(b"cut short")
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.upload(list_checkpoints(run)[-1], prune=False)
    list_checkpoints(copy)[1].verify()


def test_an_outage_is_logged_once_and_ends_by_itself(
    s3: S3Server, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reverie")
    run = run.rename(run.with_name("comeback"))
    s3.stop()
    try:
        with Mirror(CheckpointConfig(mirror=S3_MIRROR), run) as mirror:
            for checkpoint in list_checkpoints(run):
                mirror.upload(checkpoint)
            wait_until(lambda: "failed (" in caplog.text)
            s3.start()
            wait_until(lambda: "recovered" in caplog.text)
    finally:
        s3.start()
    assert caplog.text.count("failed (") == caplog.text.count("recovered") == 1
    assert "checkpoints/step_000000300/manifest.json" in s3.files("comeback")


def test_a_connection_that_is_lost_for_good_is_made_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RemoteFolder] = []

    class Connection(RemoteFolder):
        """Fails on the first connection, as SFTP does after the server has closed it."""

        def __init__(self, url: str, name: str = "") -> None:
            super().__init__(url, name)
            made.append(self)

        def sizes(self, owner: Identity | None = None) -> dict[str, int]:
            if self is made[0]:
                raise OSError("Socket is closed")
            return super().sizes(owner)

    monkeypatch.setattr(module, "RemoteFolder", Connection)
    with Mirror(config_of(tmp_path / "copy"), run) as mirror:
        mirror.upload(list_checkpoints(run)[-1])
    assert len(made) == 2 and saved_steps(tmp_path / "copy" / "run") == [150, 300]


def test_a_folder_of_another_run_is_never_written_to(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = tmp_path / "copy" / "run"
    copy.mkdir(parents=True)
    save_identity(Identity("run", "another"), copy)
    with Mirror(config_of(copy.parent), run) as mirror:
        mirror.upload(list_checkpoints(run)[-1])
    assert list(files_in(copy)) == ["mirror.json"]
    assert "contains another run, so copying is disabled" in caplog.text


def test_a_file_larger_than_a_piece_goes_there_and_back(s3: S3Server, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(2 * PIECE_BYTES + 12_345)
    (tmp_path / "large").write_bytes(content)
    remote = RemoteFolder(S3_MIRROR, "large")
    remote.put(tmp_path / "large", "a/b")
    assert remote.sizes() == {"a/b": len(content)}
    remote.files.get_file("a/b", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == content
    remote.delete("a/b")
    assert remote.sizes() == {}
