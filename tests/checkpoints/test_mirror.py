"""Runs with a mirror on a real S3-compatible server, and on a file system."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from reverie.checkpoints.run_folder import load_run
from reverie.commands.command_line import run_from_command_line
from reverie.commands.train import train
from reverie.orchestration.recipes import recipe_of
from reverie.planning import plan_run
from reverie.planning.recipe import environment_spec

from ..runs.helpers import CARTPOLE, files_in, identity, resume, saved_steps, start
from ..runs.s3_server import MARKER, S3_MIRROR, S3Server, environment, server_that_never_answers
from ..runs.warm import Server

HALF = (*CARTPOLE, "training.total_timesteps=150", "training.keep_checkpoints=1")


def mirrored_files(run_dir: Path) -> dict[str, bytes]:
    """Return the expected remote content: checkpoints, configuration, metrics and the owner's name."""
    files = files_in(run_dir)
    names = ("config.yaml", "metrics.jsonl", "mirror.json")
    return {name: files[name] for name in files if name in names or name.startswith("checkpoints/")}


def steps_of(files: dict[str, bytes]) -> list[int]:
    manifests = [content for name, content in files.items() if name.endswith("/manifest.json")]
    return sorted(json.loads(content)["step"] for content in manifests)


def lines_with(run_dir: Path, text: str) -> list[str]:
    return [line for line in (run_dir / "train.log").read_text().splitlines() if text in line]


def test_a_run_continues_on_a_new_machine_bit_for_bit(
    s3: S3Server, cartpole_run: Path, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = start(empty_folder / "pole", *HALF, f"checkpoint.mirror={S3_MIRROR}")
    assert s3.files("pole") == mirrored_files(old)

    url = f"{S3_MIRROR}/pole"
    run_from_command_line(train, [f"resume={url}", "run_dir=other", "training.total_timesteps=300"])
    new = empty_folder / "other"
    assert identity(new) == identity(cartpole_run)
    assert lines_with(new, f"restored step 150 of {url} into other")
    # The mirror keeps the name it had.
    assert s3.files("pole") == mirrored_files(new)
    assert steps_of(s3.files("pole")) == [300]
    assert not list(empty_folder.glob("*.unfinished"))

    shown = capsys.readouterr()
    everything = [*files_in(old).values(), *files_in(new).values(), *s3.files("pole").values()]
    assert not any(MARKER.encode() in content for content in everything)
    assert MARKER not in shown.out + shown.err


def test_training_continues_without_the_server_and_catches_up_when_it_is_back(
    s3: S3Server, cartpole_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "outage"
    shutil.copytree(cartpole_run, run)
    # The run has a mirror from this resume on.
    resume(run, f"checkpoint.mirror={S3_MIRROR}")
    assert steps_of(s3.files("outage")) == [150, 300]
    s3.stop()
    try:
        longer = ("training.total_timesteps=340", "training.checkpoint_interval=10")
        resume(run, *longer, "checkpoint.mirror_timeout=0.1")
    finally:
        s3.start()
    assert saved_steps(run) == [150, 300, 310, 320, 330, 340]
    assert len(lines_with(run, "failed (")) == 1
    (missing,) = lines_with(run, "was not copied to the mirror")
    assert "the checkpoint of step 340" in missing and "copies it" in missing
    assert steps_of(s3.files("outage")) == [150, 300]
    resume(run, "checkpoint.mirror_timeout=600")
    assert s3.files("outage") == mirrored_files(run)


def test_a_server_that_never_answers_keeps_neither_the_run_nor_its_process(
    tmp_path: Path, server: Server
) -> None:
    short = ("training.total_timesteps=60", "training.checkpoint_interval=30")
    with server_that_never_answers() as url:
        mirrored = (f"checkpoint.mirror={S3_MIRROR}", "checkpoint.mirror_timeout=0.2")
        ended = server.run(
            "train", *CARTPOLE, *short, *mirrored, folder=tmp_path, environment=environment(url)
        )
    assert ended.code == 0, ended.error
    assert "finished: " in ended.error and "Traceback" not in ended.error
    assert "the checkpoint of step 60 was not copied to the mirror" in ended.error
    (run,) = (tmp_path / "experiments").iterdir()
    assert saved_steps(run) == [30, 60]


def test_ctrl_c_ends_only_the_wait_for_the_last_copy(tmp_path: Path, server: Server) -> None:
    short = ("training.total_timesteps=60", "training.checkpoint_interval=30", f"run_dir={tmp_path / 'run'}")
    with server_that_never_answers() as url:
        mirrored = (f"checkpoint.mirror={S3_MIRROR}", "checkpoint.mirror_timeout=3600")
        process = server.start("train", *CARTPOLE, *short, *mirrored, environment=environment(url))
        process.wait_for("press Ctrl-C to stop waiting", tmp_path / "run" / "train.log")
        process.send(signal.SIGINT)
        ended = process.end()
    assert ended.code == 0, ended.error
    assert ended.last_line.endswith(f"was not copied to the mirror; resume={tmp_path / 'run'} copies it")


def test_the_plan_counts_the_mirror(cartpole_run: Path) -> None:
    config = load_run(str(cartpole_run))
    config.checkpoint.mirror = S3_MIRROR
    plan = plan_run(config, environment_spec(config, recipe_of(config)), recipe_of(config))
    (host,) = (resource for resource in plan.resources if resource.name == "host RAM")
    assert [row.nbytes for row in host.rows if row.name == "mirror"] == [70_000_000]
