"""Run folders have unique names, and a configuration is unchanged after saving and loading."""

import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import filelock
import pytest
import torch

from reverie.buffers import ReplayStorage
from reverie.checkpoints.checkpoint import list_checkpoints
from reverie.checkpoints.pretrained import resolve_pretrained
from reverie.checkpoints.run_folder import (
    check_run_folder,
    create_run_folder,
    load_run,
    locked,
    resume_run,
    save_config,
)
from reverie.config.dreamer import CollectConfig, DreamerTrainConfig
from reverie.config.overrides import parse
from reverie.config.resolve import multiplies_bfloat16
from reverie.config.schema import Compile, Device, Precision
from reverie.utils.errors import UserError

from ..runs.helpers import without_checksum

pytestmark = pytest.mark.usefixtures("empty_folder")
RUN = DreamerTrainConfig(name="try", device=Device.cpu, precision=Precision.float32)


def test_runs_of_one_name_in_one_second_get_folders_of_their_own() -> None:
    # The 12 folders are created within a few ms, so most have the same second.
    folders = [create_run_folder(replace(RUN)) for _ in range(12)]
    assert len(set(folders)) == 12
    pattern = r"experiments/try-\d{8}_\d{6}(-\d+)?"
    assert all(re.fullmatch(pattern, folder.as_posix()) for folder in folders)
    assert any(folder.name.endswith("-2") for folder in folders)


def test_the_saved_configuration_comes_back_equal() -> None:
    config = replace(RUN, seed=9, run_dir="a/b", compile=Compile.none)
    assert create_run_folder(config) == Path("a/b")
    save_config(config, Path("a/b"))
    assert load_run("a/b") == config


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_run_saved_before_bytes_were_scaled_keeps_them_as_they_are(empty_folder: Path) -> None:
    save_config(RUN, create_run_folder(replace(RUN, run_dir="run")))
    file = empty_folder / "run" / "config.yaml"
    assert load_run("run").env.scale_bytes
    # Such a file had no checksum either.
    saved = (line for line in file.read_text().splitlines() if not line.startswith("# checksum"))
    file.write_text("\n".join(saved).replace("  scale_bytes: true\n", ""))
    assert not load_run("run").env.scale_bytes
    assert not resume_run("run", [])[0].env.scale_bytes
    assert not load_run(resolve_pretrained("pretrained:catch")).env.scale_bytes


def test_a_run_saved_with_a_removed_setting_is_loaded_and_resumed(empty_folder: Path) -> None:
    save_config(RUN, create_run_folder(replace(RUN, run_dir="run")))
    file, saved = empty_folder / "run" / "config.yaml", load_run("run")
    text = without_checksum(file)
    assert "\ntraining:\n" in text and "probe_interval" not in text
    file.write_text(text.replace("\ntraining:\n", "\ntraining:\n  probe_interval: 20000\n"))
    assert load_run("run") == saved
    assert resume_run("run", [])[0].training == saved.training
    with pytest.raises(UserError, match=r"training.probe_interval"):
        resume_run("run", parse(["training.probe_interval=100"]))


def test_a_run_of_another_device_is_loaded_without_what_only_that_one_can_do(empty_folder: Path) -> None:
    save_config(RUN, create_run_folder(replace(RUN, run_dir="run")))
    text = without_checksum(empty_folder / "run" / "config.yaml")
    for on_cpu, on_cuda in (("cpu", "cuda"), ("float32", "bfloat16"), ("storage: ram", "storage: cuda")):
        text = text.replace(on_cpu, on_cuda)
    (empty_folder / "run" / "config.yaml").write_text(text)
    with pytest.raises(UserError, match="device=cuda was requested"):
        load_run("run")
    config = load_run("run", device=Device.auto)
    own = Precision.bfloat16 if multiplies_bfloat16(Device.cpu) else Precision.float32
    assert (config.device, config.precision, config.buffer.storage) == (Device.cpu, own, ReplayStorage.ram)
    resumed, notices = resume_run("run", parse(["device=cpu", "precision=float32", "buffer.storage=ram"]))
    moved = (resumed.device, resumed.precision, resumed.buffer.storage)
    assert moved == (Device.cpu, Precision.float32, ReplayStorage.ram)
    assert notices[1:] == [
        "device cuda -> cpu",
        "precision bfloat16 -> float32",
        "buffer.storage cuda -> ram",
    ]


def test_a_run_with_collectors_of_a_cluster_is_played_without_either(empty_folder: Path) -> None:
    collect = CollectConfig(collectors=1, address="auto")
    save_config(replace(RUN, collect=collect), create_run_folder(replace(RUN, run_dir="clustered")))
    played = load_run("clustered", device=Device.cpu)
    assert isinstance(played, DreamerTrainConfig) and played.collect == CollectConfig()


def test_a_run_in_bfloat16_goes_on_in_float32_on_a_processor_without_it_and_says_so(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_config(replace(RUN, precision=Precision.bfloat16), create_run_folder(replace(RUN, run_dir="run")))
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert load_run("run").precision is Precision.float32
    resumed, notices = resume_run("run", [])
    assert resumed.precision is Precision.float32
    assert notices[1:] == ["precision bfloat16 -> float32"]


def test_an_empty_folder_may_be_named_as_the_run_folder(empty_folder: Path) -> None:
    (empty_folder / "ready").mkdir()
    check_run_folder(replace(RUN, run_dir="ready"))


@pytest.mark.parametrize(
    "name", ["thesis.tex", "train.log", ".git/config", "old.unfinished/model", "ranks/a"]
)
def test_a_folder_with_other_files_is_not_used_as_a_run_folder(empty_folder: Path, name: str) -> None:
    file = empty_folder / "home" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(
        UserError, match=r"run_dir=home is not empty and does not contain a run.*run_dir=home/run"
    ):
        check_run_folder(replace(RUN, run_dir="home"))
    with pytest.raises(UserError, match="run_dir=/ is not empty"):
        check_run_folder(replace(RUN, run_dir="/"))
    assert file.read_text() == "mine"


def test_a_run_that_was_killed_before_its_configuration_can_be_started_again(empty_folder: Path) -> None:
    for name in (".lock", "train.log", ".config.yaml.x.unfinished/config.yaml", "ranks/001/.lock"):
        (empty_folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (empty_folder / "run" / name).touch()
    check_run_folder(replace(RUN, run_dir="run"))


def test_a_file_cannot_be_the_run_folder(empty_folder: Path) -> None:
    (empty_folder / "file").touch()
    with pytest.raises(UserError, match=r"run_dir=file/x cannot be created: .*file is a file"):
        check_run_folder(replace(RUN, run_dir="file/x"))


@pytest.mark.parametrize("left", ["config.yaml", "checkpoints"])
def test_what_is_left_of_a_run_is_not_written_over(empty_folder: Path, left: str) -> None:
    (empty_folder / "run").mkdir()
    (empty_folder / "run" / left).symlink_to("not_mounted")
    with pytest.raises(UserError, match="run_dir=run already contains a run"):
        check_run_folder(replace(RUN, run_dir="run"))


def test_a_folder_of_checkpoints_that_is_not_there_is_no_empty_one(empty_folder: Path) -> None:
    assert list_checkpoints(empty_folder) == []
    (empty_folder / "checkpoints").symlink_to("not_mounted")
    with pytest.raises(UserError, match=r"checkpoints is not a folder, or is a broken link\."):
        list_checkpoints(empty_folder)


def test_only_runs_are_proposed_in_place_of_a_folder_that_is_not_there(empty_folder: Path) -> None:
    save_config(RUN, create_run_folder(replace(RUN, run_dir="runs/first")))
    # The name is closer, but the folder is not a run.
    (empty_folder / "runs" / "frst").mkdir()
    for asked in ("runs/firs", "runs/first/config.yaml"):
        with pytest.raises(UserError, match=f"^run={asked} is not a folder. Did you mean `runs/first`\\?$"):
            load_run(asked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a run: it has no config.yaml"),
        ("", "is empty"),
        ("seed: [1", r"^run=\S+: Line 1 of \S+ is not YAML"),
        ("seed: [1\n", r"^run=\S+: Line 1 of \S+ is not YAML"),
        ("seed: many\n", r"^run=\S+: Line 1 of \S+ sets seed, which must be a whole number"),
        ("sed: 1\n", r"^run=\S+: Line 1 of \S+ sets an unknown key"),
        ("training: {batch_size: 0}\n", "training.batch_size must be at least 1, got 0"),
    ],
)
def test_a_folder_without_a_whole_configuration_is_refused(
    text: str | None, message: str, empty_folder: Path
) -> None:
    (empty_folder / "run").mkdir()
    if text is not None:
        (empty_folder / "run" / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_run("run")


def test_a_folder_serves_one_process_at_a_time(empty_folder: Path) -> None:
    script = "import filelock, sys\n"
    script += "with filelock.FileLock('run/.lock'): print('got it', flush=True); sys.stdin.read()"
    (empty_folder / "run").mkdir()
    with locked(Path("run")), pytest.raises(filelock.Timeout):
        # The lock is already taken.
        filelock.FileLock("run/.lock", timeout=0).acquire()
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "got it\n"
        with pytest.raises(UserError, match=r"run_dir=run is in use by another process"), locked(Path("run")):
            pass
        # The lock must be released however the process ends.
        other.kill()
        other.wait()
        with locked(Path("run")):
            pass


def test_a_lock_waits_for_a_process_that_is_about_to_exit(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_folder / "run").mkdir()
    script = "import filelock, sys\n"
    script += "with filelock.FileLock('run/.lock'): print('got it', flush=True); sys.stdin.read()"
    command, said = [sys.executable, "-c", script], []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "got it\n"
        logger = logging.getLogger("reverie.checkpoints.run_folder")
        monkeypatch.setattr(logger, "handle", lambda record: said.append(record.getMessage()) or other.kill())
        with locked(Path("run")):
            assert said == ["run_dir=run is in use by another process; waiting up to 10 s for it to exit"]


def test_a_folder_that_cannot_be_written_is_refused_in_one_sentence(empty_folder: Path) -> None:
    (empty_folder / "file").touch()
    with pytest.raises(UserError, match=r"run_dir=file/run cannot be written: Not a directory"):
        create_run_folder(replace(RUN, run_dir="file/run"))
