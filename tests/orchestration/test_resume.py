"""A run continues from its checkpoint after its end, a crash or a signal."""

import shutil
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch

from reverie.checkpoints.checkpoint import latest_checkpoint
from reverie.models import LEARNERS
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE
from reverie.testing.fingerprint import reproducible

from ..runs.fixtures import started_once
from ..runs.helpers import (
    CARTPOLE,
    CATCH,
    PONG,
    differing,
    error_of,
    events_of,
    identity,
    metrics_of,
    resume,
    saved_loop,
    saved_model,
    saved_steps,
    scalars_of,
    series_of,
    start,
    update_counts,
    without_checksum,
)
from ..runs.warm import Server

LEVERS = (
    "world_model.objective=barlow",
    "world_model.harmony=true",
    "controller.imagine_last=4",
    "buffer.newest_share=0.5",
    "controller.entropy_decay_from=10",
)


@pytest.fixture(scope="module")
def half_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of the first 150 of 300 steps."""
    return started_once(tmp_path_factory, "half", *CARTPOLE, "training.total_timesteps=150")


@pytest.fixture(scope="module")
def resumed_run(half_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the other 150 steps, in a folder that was moved."""
    moved = tmp_path_factory.mktemp("resumed") / "moved"
    shutil.copytree(half_run, moved)
    return resume(moved, "training.total_timesteps=300")


def test_a_resumed_run_is_the_unbroken_run_bit_for_bit(resumed_run: Path, cartpole_run: Path) -> None:
    assert saved_steps(resumed_run) == saved_steps(cartpole_run) == [150, 300]
    assert update_counts(resumed_run, 300) == dict.fromkeys(LEARNERS, 66)
    assert identity(resumed_run) == identity(cartpole_run)
    assert reproducible(metrics_of(resumed_run)) == reproducible(metrics_of(cartpole_run))


@pytest.mark.parametrize("first", ["true", "false"])
def test_replay_may_become_compressed_or_plain_and_the_next_batches_are_equal(
    catch_run: Path, tmp_path: Path, first: str
) -> None:
    other = {"true": "false", "false": "true"}[first]
    run = start(tmp_path / "run", *CATCH, f"buffer.compressed={first}", "training.total_timesteps=150")
    resume(run, f"buffer.compressed={other}", "training.total_timesteps=300")
    found, expected = identity(run), identity(catch_run)
    assert (found["model"], found["replay"]) == (expected["model"], expected["replay"])


def test_an_interval_of_the_log_goes_on_where_it_was_broken(cartpole_run: Path, tmp_path: Path) -> None:
    run = start(
        tmp_path / "run", *CARTPOLE, "training.checkpoint_interval=130", "training.total_timesteps=140"
    )
    # This simulates a kill at step 139.
    for later in saved_steps(run)[1:]:
        shutil.rmtree(run / "checkpoints" / f"step_{later:09d}")
    resume(run, "training.checkpoint_interval=150", "training.total_timesteps=300")
    assert identity(run) == identity(cartpole_run)


def test_metrics_go_on_in_the_same_files_without_a_gap_or_a_duplicate(
    half_run: Path, resumed_run: Path
) -> None:
    assert (resumed_run / "metrics.jsonl").read_text().startswith((half_run / "metrics.jsonl").read_text())
    lines = metrics_of(resumed_run)
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps)
    assert [line["step"] for line in lines if "train/updates" in line] == [50, 100, 150, 200, 250, 300]
    counts = Counter((line["step"], tag) for line in lines for tag in line if tag != "step")
    assert set(counts.values()) == {1}
    assert scalars_of(events_of(resumed_run)) == series_of(lines)
    assert sorted(path.name for path in resumed_run.parent.iterdir()) == ["moved"]


def test_a_resumed_run_says_what_changed(resumed_run: Path) -> None:
    log = (resumed_run / "train.log").read_text()
    assert f"resuming {resumed_run}" in log
    assert "training.total_timesteps 150 -> 300" in log


def test_resuming_twice_from_one_checkpoint_gives_the_same_run(
    half_run: Path, resumed_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(half_run, tmp_path / "again")
    again = resume(tmp_path / "again", "training.total_timesteps=300")
    assert reproducible(metrics_of(again)) == reproducible(metrics_of(resumed_run))
    assert differing(saved_model(again, 300), saved_model(resumed_run, 300)) == set()


def test_what_was_written_after_the_checkpoint_is_written_again_after_a_crash(
    cartpole_run: Path, tmp_path: Path
) -> None:
    crashed = tmp_path / "crashed"
    shutil.copytree(cartpole_run, crashed)
    newest = crashed / "checkpoints" / "step_000000300"
    # This simulates a kill during the write.
    newest.rename(newest.with_name(newest.name + ".unfinished"))
    resume(crashed)
    lines = metrics_of(crashed)
    assert [line["step"] for line in lines if "train/updates" in line] == [50, 100, 150, 200, 250, 300]
    upto = [line for line in metrics_of(cartpole_run) if line["step"] <= 150]
    assert lines[: len(upto)] == upto
    assert scalars_of(events_of(crashed)) == series_of(lines)
    assert saved_loop(crashed, 300)["updates"] == 66
    names = {"step_000000150", "step_000000300", "replay"}
    assert {path.name for path in newest.parent.iterdir()} == names


@pytest.mark.parametrize(
    ("settings", "steps", "stored"),
    [
        ((*CARTPOLE, "training.total_timesteps=120"), (80, 120), False),
        ((*CATCH, "training.total_timesteps=120"), (80, 120), False),
        ((*CATCH, "training.total_timesteps=120"), (80, 120), True),
        ((*CATCH, *LEVERS, "training.total_timesteps=120"), (80, 120), True),
        (PONG, (40, 60), True),
        ((*PONG, "env.num_envs=4", "training.learning_starts=32"), (40, 60), True),
    ],
    ids=["cartpole, no latents", "catch, no latents", "catch", "catch, levers", "pong", "pong, 4 envs"],
)
def test_every_kind_of_run_goes_on_bit_for_bit(
    settings: tuple[str, ...], steps: tuple[int, int], stored: bool, tmp_path: Path
) -> None:
    broken_at, end = steps
    settings = (
        *settings,
        f"buffer.store_latents={str(stored).lower()}",
        f"training.checkpoint_interval={broken_at}",
    )
    unbroken = start(tmp_path / "unbroken", *settings)
    broken = tmp_path / "broken"
    shutil.copytree(unbroken, broken)
    shutil.rmtree(broken / "checkpoints" / f"step_{end:09d}")
    resume(broken)
    assert identity(broken) == identity(unbroken)
    assert identity(broken)["step"] == str(end)


def test_the_replay_of_a_run_on_a_gpu_is_compared_where_there_is_none(
    catch_run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(catch_run, copy)
    text = without_checksum(copy / "config.yaml")
    for here, there in (("device: cpu", "device: cuda"), ("storage: ram", "storage: cuda")):
        assert here in text
        text = text.replace(here, there)
    (copy / "config.yaml").write_text(text)
    assert identity(copy) == identity(catch_run)


@pytest.mark.gpu
@pytest.mark.parametrize("storage", ["ram", "cuda"])
def test_on_a_gpu_a_deterministic_run_goes_on_bit_for_bit(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It must be set before this process's first matrix product.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    settings = (*PONG, "device=cuda", "deterministic=true", f"buffer.storage={storage}")
    settings += ("training.checkpoint_interval=40",)
    try:
        unbroken = start(tmp_path / "unbroken", *settings)
        broken = tmp_path / "broken"
        shutil.copytree(unbroken, broken)
        shutil.rmtree(broken / "checkpoints" / "step_000000060")
        resume(broken)
    finally:
        torch.use_deterministic_algorithms(False)
    assert identity(broken) == identity(unbroken)


def test_a_finished_run_is_left_as_it_is(half_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(half_run, copy)
    resume(copy)
    told = f"finished: {copy}; no steps were left. Raise training.total_timesteps"
    assert told in (copy / "train.log").read_text()
    assert saved_steps(copy) == [150]
    assert metrics_of(copy) == metrics_of(half_run)
    assert differing(saved_model(copy, 150), saved_model(half_run, 150)) == set()


def test_a_model_file_that_holds_code_is_refused(
    half_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(half_run, copy)
    checkpoint = latest_checkpoint(copy)
    assert checkpoint.model(torch.device("cpu")).keys() == {
        "world_model",
        "controller",
        "optimizers",
        "noise",
        "online",
    }
    for name in checkpoint.manifest()["files"]:
        if name.endswith("model.safetensors"):
            torch.save({"world_model": Path("anything but tensors")}, copy / "checkpoints" / name)
    message = error_of(capsys, lambda: resume(copy, "training.total_timesteps=300"))
    assert "model.safetensors" in message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_leaves_a_checkpoint_and_the_command_that_goes_on(
    number: signal.Signals, tmp_path: Path, server: Server
) -> None:
    run_dir = tmp_path / "run"
    endless = ("training.total_timesteps=1000000", "training.checkpoint_interval=0")
    process = server.start("train", *CATCH, *endless, f"run_dir={run_dir}", folder=tmp_path)
    process.wait_for("train/loss/total", run_dir / "metrics.jsonl")
    process.send(number)
    ended = process.end()
    assert (ended.code, RESUME_ME_EXIT_CODE) == (75, 75)
    (step,) = saved_steps(run_dir)
    last = [line for line in ended.error.splitlines() if "updates/s" not in line][-3:]
    assert f"{number.name}: finishing the step and writing a checkpoint." in last[0]
    assert f"step {step}: checkpoint" in last[1]
    assert last[2].endswith(f"interrupted; continue with resume={run_dir}")
    assert "Traceback" not in ended.error

    resume(run_dir, f"training.total_timesteps={step + 40}")
    assert saved_steps(run_dir) == [step, step + 40]
    assert saved_loop(run_dir, step + 40)["updates"] == 1 + (step + 40 - 40) // 4


def test_a_second_ctrl_c_ends_a_run_at_once(tmp_path: Path, server: Server) -> None:
    run_dir = tmp_path / "run"
    # The updates of step 40 last longer than the test would wait.
    busy = ("training.log_interval=39", "training.train_ratio=12e6", "training.max_updates_per_step=1000000")
    process = server.start("train", *CARTPOLE, *busy, f"run_dir={run_dir}")
    process.wait_for('"step": 39', run_dir / "metrics.jsonl")
    run = psutil.Process(process.pid)
    used = run.cpu_times().user
    # The run is now in the updates.
    process.wait_until(lambda: run.cpu_times().user > used + 1)
    process.send(signal.SIGINT)
    process.wait_for("SIGINT: finishing the step", run_dir / "train.log")
    process.send(signal.SIGINT)
    ended = process.end()
    assert ended.code == -signal.SIGINT
    assert ended.last_line == f"interrupted without saving; continue with resume={run_dir}"
    assert saved_steps(run_dir) == []
