"""Untrusted run folders with special files, links out of the folder, or files that grow while read."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sweep import last_metrics
from reverie.checkpoints.checkpoint import latest_checkpoint
from reverie.checkpoints.mirror import restore
from reverie.checkpoints.run_folder import load_run
from reverie.commands.command_line import run_from_command_line
from reverie.commands.train import train
from reverie.config.saved import CONFIG_BYTES
from reverie.testing.fingerprint import main as compare
from reverie.utils.durable_io import open_regular
from reverie.utils.errors import UserError
from reverie.utils.logging.console import LOG_FILE, configure_logging
from reverie.utils.logging.json_lines import read_lines

from ..runs.forged import SHORT, file_of, put, write_manifest
from ..runs.helpers import error_of, files_in, resume, start
from ..runs.warm import Server

SECRET = "hunter2"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_text(f"password: {SECRET}\n")
    path.symlink_to(target)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


RUN_FILES = ("config.yaml", "metrics.jsonl", "train.log")
CHECKPOINT_FILES = (
    "manifest.json",
    "model.safetensors",
    "model.json",
    "state.json",
    "replay.json",
    "replay/env",
)


@pytest.mark.parametrize("make", [pipe, endless, link], ids=lambda make: make.__name__)
@pytest.mark.parametrize("kind", [*RUN_FILES, *CHECKPOINT_FILES])
def test_what_is_no_regular_file_is_refused_at_once(
    kind: str, make: Any, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = latest_checkpoint(run_dir)
    path = checkpoint.folder / kind if kind == "manifest.json" else run_dir / kind
    path = path if kind in (*RUN_FILES, "manifest.json") else file_of(checkpoint, kind)
    path.unlink()
    make(path)
    with pytest.raises(SystemExit) as refused:
        resume(run_dir, "training.total_timesteps=24")
    told = capsys.readouterr().err
    assert refused.value.code == 2
    assert f"{path} " in told and "cannot be read: it is a " in told.splitlines()[-1]
    assert SECRET not in told


@pytest.mark.parametrize("kind", ["config.yaml", "metrics.jsonl", "manifest.json"])
def test_a_file_of_a_terabyte_is_refused_unread(
    kind: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = latest_checkpoint(run_dir).folder / kind if kind == "manifest.json" else run_dir / kind
    path.unlink()
    huge(path)
    with pytest.raises(SystemExit) as refused:
        resume(run_dir)
    assert refused.value.code == 2 and str(path) in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("make", [pipe, endless], ids=lambda make: make.__name__)
def test_a_remote_copy_is_read_with_the_same_care(make: Any, good_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(good_run, copy)
    path = latest_checkpoint(copy).folder / "state.json"
    path.unlink()
    make(path)
    with pytest.raises(UserError, match=r"are damaged: .*state\.json is missing"):
        restore(f"file://{copy}", str(tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()


def test_the_log_files_of_a_stranger_write_nowhere_else(run_dir: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for name in ("metrics.jsonl.unfinished", "config.yaml.unfinished"):
        (run_dir / name).symlink_to(outside)
    resume(run_dir, "training.total_timesteps=24")
    assert outside.read_text() == "mine"
    (run_dir / LOG_FILE).unlink()
    (run_dir / LOG_FILE).symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match=r"train\.log cannot be read: it is a link"):
        configure_logging(run_dir)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"seed: 1\n{SECRET}: 3\n", r": Line 2 of \S+config\.yaml sets an unknown key"),
        (f"env:\n  num_envs: {SECRET}\n", r": Line 2 of .* sets env\.num_envs, which must be a whole number"),
        (f"env:\n  {SECRET}: 1\n", r": Line 2 of .* sets an unknown key"),
        (f"root:{SECRET}:0: [x\nuser: {{y\n", r": Line \d of .* is not YAML"),
        (f"{SECRET}\n", r"config\.yaml sets an unknown key"),
        (f"name: &{SECRET} x\nrun_dir: *{SECRET}\n", r": Line 1 of .* contains a YAML alias"),
        ("seed: 1\nname: ${oc.env:HOME}\n", r": Line 2 of .* contains an interpolation"),
        ("checkpoint:\n  mirror: 'file:///${oc.env:HOME}'\n", r": Line 2 of .* contains an interpolation"),
        ("seed: " + "[" * 50_000, r": Line 1 of .* is nested too deep"),
        ("a: 1\n" * CONFIG_BYTES, r"config\.yaml cannot be read: it has [\d,]+ bytes"),
        ("buffer:\n  capacity: 1" + "0" * 400 + "\n", r"buffer\.capacity must be below 2\*\*63"),
    ],
)
def test_an_error_quotes_at_most_one_line_of_a_configuration(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as refused:
        load_run(str(tmp_path))
    assert SECRET not in str(refused.value)


def test_aliases_of_aliases_are_refused_before_they_grow(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join(9 * [f'*a{i - 1}'])}]" for i in range(1, 9)]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r": Line 1 of .* contains a YAML alias"):
        load_run(str(tmp_path))


def test_nothing_in_a_manifest_steers_the_terminal(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = latest_checkpoint(run_dir)
    version = "\x1b[31mred\x1b]0;title\x07\u202e" + 5_000 * "A"
    write_manifest(checkpoint, checkpoint.manifest() | {"format": 4, "reverie": version})
    told = error_of(capsys, lambda: resume(run_dir))
    assert "Use Reverie ?[31mred?]0;title??AAA" in told and len(told) < 600


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("updates", 10**399),
        ("updates", 2**63),
        ("updates", -1),
        ("ratio/paid", 10**399),
        ("ratio/start_step", float("nan")),
        ("nonfinite/total", 2**80),
    ],
)
def test_counts_that_no_run_reaches_are_refused(
    place: str, value: Any, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = latest_checkpoint(run_dir)
    path = file_of(checkpoint, "state.json")
    state = json.loads(path.read_bytes())
    *outer, last = place.split("/")
    (state[outer[0]] if outer else state)[last] = value
    put(checkpoint, path, json.dumps(state).encode())
    with pytest.raises(SystemExit) as refused:
        resume(run_dir, "training.total_timesteps=24")
    told = capsys.readouterr().err.splitlines()[-1]
    assert refused.value.code == 2
    assert told.startswith(f"error: {path} is damaged, or was not written by Reverie (")


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 12, "loss": NaN}',
        '{"step": 12, "loss": 1e999}',
        '{"step": 12, "loss": 1' + "0" * 400 + "}",
        '{"step": 1' + "0" * 400 + "}",
        '{"step": -5}',
        '{"step": 12, "loss": "many"}',
        '{"step": 12, "loss": {}}',
        '{"step": 12, "' + "x" * 2**21 + '": 1}',
    ],
    ids=lambda line: line[:24],
)
def test_lines_of_metrics_that_no_run_writes_are_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 8, "loss": "NaN", "a": 1.5}\n' + line + "\n")
    told = f"Line 2 of {path} was not written by Reverie. Delete this line and try again."
    for read in (lambda: list(read_lines(path)), lambda: last_metrics(tmp_path, 20)):
        with pytest.raises(UserError) as refused:
            read()
        assert str(refused.value) == told


def test_a_return_that_is_not_a_number_is_averaged_as_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 8, "episode/return": "Infinity"}\n')
    assert last_metrics(tmp_path, 20) == {"step": 8.0, "episode/return_last_20": float("inf")}


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="it is a folder, not a regular file"):
        open_regular(tmp_path)


def test_runs_are_compared_by_what_they_hold(
    good_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stopped and continued run has different files but the same contents."""
    long, stopped = tmp_path / "long", tmp_path / "stopped"
    start(
        long,
        *SHORT,
        "training.total_timesteps=24",
        "training.checkpoint_interval=16",
        "buffer.chunk_length=5",
    )
    start(
        stopped,
        *SHORT,
        "training.total_timesteps=24",
        "training.checkpoint_interval=8",
        "buffer.chunk_length=5",
    )
    assert files_in(long / "checkpoints").keys() != files_in(stopped / "checkpoints").keys()
    capsys.readouterr()
    compare([str(long), str(stopped)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.pop("run") for line in lines] == [str(long), str(stopped)]
    assert lines[0] == lines[1] and {"step", "model", "loop", "replay", "metrics"} <= lines[0].keys()
    with pytest.raises(SystemExit) as differs:
        compare([str(long), str(good_run)])
    assert differs.value.code == 1
    capsys.readouterr()
    assert "Pass the folders of runs" in error_of(capsys, lambda: compare([]))


def test_a_current_folder_that_is_gone_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); import reverie.commands.train"
    ended = subprocess.run([sys.executable, "-c", code, str(gone)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (
        2,
        "error: the current folder was deleted. Change to another one (cd ~).\n",
    )


def test_a_limit_on_the_size_of_files_is_named(server: Server, empty_folder: Path) -> None:
    ended = server.run("train", *SHORT, "run_dir=run", file_bytes=100_000)
    assert ended.code == 2 and "Traceback" not in ended.error
    assert "File too large. Raise the file size limit (ulimit -f unlimited)" in ended.last_line


def test_a_name_that_is_no_utf8_stands_in_the_log(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = tmp_path / os.fsdecode(b"sch\xf6n")
    shutil.copytree(run_dir, strange)
    run_from_command_line(train, [f'resume="{strange}"', "training.total_timesteps=24"])
    assert "Logging error" not in capsys.readouterr().err
    assert "sch?n" in (strange / "train.log").read_text(encoding="utf-8")
