"""`resume=<URL>` uses the newest complete checkpoint, and invalid requests to a mirror are refused."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from reverie.checkpoints.checkpoint import latest_checkpoint
from reverie.checkpoints.mirror import Identity, identity_of, restore, save_identity
from reverie.commands.command_line import run_from_command_line
from reverie.commands.train import train
from reverie.utils.errors import UserError
from reverie.utils.remote_urls import describe_error, redact_url

from ..runs.helpers import CARTPOLE, error_of, files_in, saved_steps
from ..runs.s3_server import MARKER, environment


@pytest.fixture
def copy(cartpole_run: Path, empty_folder: Path) -> Path:
    """Return a remote folder with the layout of a run."""
    shutil.copytree(cartpole_run, empty_folder / "remote" / "pole")
    return empty_folder / "remote" / "pole"


def test_a_restored_run_has_every_checkpoint_that_it_kept(copy: Path) -> None:
    folder, _ = restore(f"file://{copy}/", None)
    assert saved_steps(Path(folder)) == [150, 300]
    assert files_in(Path(folder) / "checkpoints") == files_in(copy / "checkpoints")


def test_a_folder_that_a_restored_one_cannot_replace_is_refused_at_once(copy: Path) -> None:
    Path("empty").mkdir()
    Path("link").symlink_to("empty")
    Path("begun").mkdir()
    Path("begun/.lock").touch()
    for name in ("link", "begun"):
        repair = (
            f"cannot be replaced by the restored folder. Restore into a new folder, e.g. run_dir={name}/run."
        )
        with pytest.raises(UserError, match=re.escape(repair)):
            restore(f"file://{copy}", name)
    for name in ("link/run", "empty/run"):
        shutil.rmtree("empty/run", ignore_errors=True)
        restore(f"file://{copy}", name)
        assert saved_steps(Path(name)) == [150, 300]


def test_half_a_checkpoint_is_not_used(copy: Path) -> None:
    (copy / "checkpoints/step_000000300/manifest.json").unlink()
    folder, (message,) = restore(f"file://{copy}", None)
    assert folder == "experiments/pole" and "restored step 150 of file://" in message
    assert saved_steps(Path(folder)) == [150]
    assert latest_checkpoint(Path(folder)).step == 150


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(copy: Path, damage: str) -> None:
    path = copy / "checkpoints/step_000000300/model.safetensors"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    folder, (damaged, _) = restore(f"file://{copy}", "here")
    assert f"damaged checkpoint: file://{path} is" in damaged and "using step 150" in damaged
    assert saved_steps(Path(folder)) == [150]
    assert latest_checkpoint(Path(folder)).step == 150
    assert sorted(p.name for p in Path().iterdir()) == ["here", "remote"]


def test_a_mirror_without_a_complete_checkpoint_leaves_no_folder(copy: Path) -> None:
    for path in copy.glob("checkpoints/step_*/state.json"):
        path.write_bytes(b"{}")
    with pytest.raises(
        UserError, match=r"All checkpoints of file://.*/pole are damaged: .*state\.json has 2 bytes"
    ):
        restore(f"file://{copy}", "here")
    assert [path.name for path in Path().iterdir()] == ["remote"]


START = ("run_dir=new", *CARTPOLE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume=file://{remote}/none"], "found no copy of a run"),
        (["resume=file://{remote}/early"], "found no complete checkpoint yet"),
        (
            ["resume=file://{remote}/pole", "run_dir=there"],
            "run_dir=there already contains a run. Continue it with resume=there",
        ),
        (
            ["resume=file://{remote}/pole", "run_dir=remote"],
            "run_dir=remote is not empty and does not contain a run. Choose a new folder",
        ),
        (["resume=s3://bucket/runs/pole"], "resume=s3://bucket/runs/pole could not be restored: "),
        (["resume=s3://me:{marker}@bucket/pole"], "credentials or a query"),
        (["resume=s4://bucket/pole"], "fsspec does not support s4. The most useful are s3, gs"),
        ([*START, "checkpoint.mirror=s3://me:{marker}@bucket/runs"], "credentials or a query"),
        ([*START, "checkpoint.mirror='s3://bucket/runs?token={marker}'"], "credentials or a query"),
        ([*START, "checkpoint.mirror=/backup"], "Write a folder as checkpoint.mirror=file:///backup."),
        ([*START, "checkpoint.mirror=s3://"], "has no folder"),
        ([*START, "checkpoint.mirror=s4://bucket"], "The most useful are s3, gs"),
        ([*START, "checkpoint.mirror=oss://bucket"], "a package that is missing: Install ossfs to access"),
        (
            [*START, "checkpoint.mirror_timeout=-1"],
            "checkpoint.mirror_timeout must be in [0, 86400], got -1.",
        ),
        (
            ["run_dir=pole", *CARTPOLE, "checkpoint.mirror=file://{remote}"],
            "/pole already contains another run. Continue that run with resume=file://",
        ),
        (["resume=there", "checkpoint.mirror=file://{remote}"], "already contains another run"),
        (
            ["run_dir=remote/new", *CARTPOLE, "checkpoint.mirror=file://{remote}"],
            "remote contains the run folder, so the copy would overwrite the run. Choose a folder elsewhere.",
        ),
        ([*CARTPOLE, "checkpoint.mirror=file://{remote}/../experiments"], "contains the run folder"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    arguments: list[str],
    message: str,
    copy: Path,
    cartpole_run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No server listens there.
    for name, value in environment("http://127.0.0.1:1").items():
        monkeypatch.setenv(name, value)
    shutil.copytree(cartpole_run, "there")
    save_identity(Identity("pole", "mine"), Path("there"))
    (copy.parent / "early").mkdir()
    shutil.copy(copy / "config.yaml", copy.parent / "early")
    before = files_in(Path())
    filled = [text.replace("{remote}", str(copy.parent)).replace("{marker}", MARKER) for text in arguments]
    refusal = error_of(capsys, lambda: run_from_command_line(train, filled))
    assert message in refusal
    assert MARKER not in refusal
    assert files_in(Path()) == before


def test_without_s3fs_the_sentence_says_what_to_install(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    loaded = sys.modules["fsspec.registry"].__dict__["_registry"]
    monkeypatch.delitem(loaded, "s3", raising=False)
    for arguments in ([*CARTPOLE, "checkpoint.mirror=s3://bucket"], ["resume=s3://bucket/pole"]):
        message = error_of(capsys, lambda arguments=arguments: run_from_command_line(train, arguments))
        assert message.endswith("needs a package that is missing: Install s3fs to access S3.")


def test_a_run_keeps_its_remote_name(empty_folder: Path) -> None:
    for folder, name in (
        ("experiments/pole", "pole"),
        ("experiments/sweep/0", "sweep/0"),
        ("a/b", "b"),
        ("experiments", "experiments"),
    ):
        Path(folder).mkdir(parents=True, exist_ok=True)
        identity = identity_of(Path(folder))
        assert identity.name == name
        save_identity(identity, Path(folder))
        assert identity_of(Path(folder)) == identity
    Path("experiments/pole").rename("renamed")
    assert identity_of(Path("renamed")).name == "pole"


@pytest.mark.parametrize("content", ['{"name": "../up", "run": "a"}', '{"name": "", "run": "a"}', "[]", "{"])
def test_a_forged_name_is_refused(content: str, empty_folder: Path) -> None:
    Path("mirror.json").write_text(content)
    with pytest.raises(UserError, match=r"mirror\.json is damaged, or was not written by Reverie"):
        identity_of(Path())


def test_reasons_hold_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "abc/def+word")
    monkeypatch.setenv("SHORT_KEY", "e")
    error = OSError("no: abc/def+word, abc%2Fdef%2Bword\n at http://host/x?X-Amz-Signature=12ab, sorry")
    assert describe_error(error) == "OSError: no: ***, *** at http://host/x sorry"
    assert redact_url("abfs://box@account/runs?sig=1") == "abfs://account/runs"
