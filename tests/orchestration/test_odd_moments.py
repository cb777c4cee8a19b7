"""Kills and signals at unusual times: before the first checkpoint, at the last step, and in a rollback."""

import errno
import os
import re
import shutil
import signal
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch

from reverie.checkpoints.checkpoint import Checkpoint, list_checkpoints, save_checkpoint
from reverie.commands.train import ENVIRONMENT_EXIT_CODE
from reverie.envs import EnvironmentCrashed
from reverie.orchestration.evaluation import Evaluation, evaluate
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE
from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator
from reverie.workflows.world_models import DreamerWorkflow

from ..runs.helpers import (
    CATCH,
    events_of,
    identity,
    intervals_of,
    metrics_of,
    resume,
    saved_steps,
    scalars_of,
    series_of,
    start,
)
from ..runs.warm import Server


def evaluations_of(run_dir: Path) -> list[float]:
    return [line["step"] for line in metrics_of(run_dir) if "evaluation/return_mean" in line]


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(
    catch_run: Path, tmp_path: Path
) -> None:
    unbroken, broken = catch_run, tmp_path / "broken"
    shutil.copytree(unbroken, broken)
    shutil.rmtree(broken / "checkpoints")
    (broken / "checkpoints" / "step_000000150.unfinished").mkdir(parents=True)
    resume(broken)
    assert identity(broken) == identity(unbroken)
    assert "no checkpoint yet: the run starts over" in (broken / "train.log").read_text()
    assert scalars_of(events_of(broken)) == series_of(metrics_of(broken))
    assert saved_steps(broken) == saved_steps(unbroken)


def test_a_run_that_was_killed_at_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    # Four environments reach the interval at step 44.
    odd = ("training.checkpoint_interval=41", "training.log_interval=41", "training.total_timesteps=80")
    unbroken = start(tmp_path / "unbroken", *CATCH, *odd)

    def is_killed(self: WorldModelOrchestrator) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as killing, pytest.raises(KeyboardInterrupt):
        killing.setattr(WorldModelOrchestrator, "save", is_killed)
        start(tmp_path / "broken", *CATCH, *odd)
    assert intervals_of(tmp_path / "broken")[-1]["step"] == 44
    resume(tmp_path / "broken")
    assert identity(tmp_path / "broken") == identity(unbroken)


def test_a_run_that_was_killed_while_it_started_begins_again(server: Server, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    stored = ("buffer.storage=mmap", "training.total_timesteps=20")
    process = server.start("train", *CATCH, *stored, f"run_dir={run_dir}")
    process.wait_until(lambda: (run_dir / "replay").exists())
    process.send(signal.SIGKILL)
    assert process.end().code == -signal.SIGKILL
    ended = server.run("train", f"resume={run_dir}")
    assert ended.code == 0, ended.error
    assert saved_steps(run_dir)[-1] == 20


def test_a_run_whose_checkpoints_were_moved_away_keeps_its_log(
    catch_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(catch_run, moved)
    (moved / "checkpoints").rename(tmp_path / "elsewhere")
    before = {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit, match="2"):
        resume(moved)
    assert re.search(
        r"no folder checkpoints, but its metrics\.jsonl .* Restore .*checkpoints", capsys.readouterr().err
    )
    assert {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()} == before
    (tmp_path / "elsewhere").rename(moved / "checkpoints")
    resume(moved)
    assert identity(moved) == identity(catch_run)


def test_a_kill_after_the_last_checkpoint_misses_no_line(tmp_path: Path) -> None:
    # The last interval is shorter.
    odd = ("training.log_interval=36", "training.checkpoint_interval=40")
    odd = (*odd, "training.total_timesteps=120")
    unbroken = start(tmp_path / "unbroken", *CATCH, *odd)
    broken = tmp_path / "broken"

    def killed(self: WorldModelOrchestrator) -> None:
        save(self)
        if self.step == 120:
            raise KeyboardInterrupt

    save = WorldModelOrchestrator.save
    with pytest.MonkeyPatch.context() as killing, pytest.raises(KeyboardInterrupt):
        killing.setattr(WorldModelOrchestrator, "save", killed)
        start(broken, *CATCH, *odd)
    assert saved_steps(broken) == [40, 80, 120]
    resume(broken)
    assert identity(broken) == identity(unbroken)
    assert intervals_of(broken)[-1]["step"] == 120


@pytest.mark.parametrize("interval", [40, 120], ids=["on the way", "at the last step"])
def test_an_evaluation_that_a_signal_puts_off_is_made_up_once(
    interval: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = (f"training.evaluation_interval={interval}", "training.evaluation_episodes=6")
    evaluated = (*evaluated, "training.total_timesteps=120")
    unbroken = start(tmp_path / "unbroken", *CATCH, *evaluated)
    run_dir = tmp_path / "run"

    def after_a_signal(*arguments: Any, **keywords: Any) -> Evaluation:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments, **keywords)

    with monkeypatch.context() as stopping, pytest.raises(SystemExit) as stopped:
        stopping.setattr("reverie.orchestration.instruments.evaluate", after_a_signal)
        start(run_dir, *CATCH, *evaluated)
    assert stopped.value.code == RESUME_ME_EXIT_CODE
    assert (saved_steps(run_dir)[-1], evaluations_of(run_dir)) == (interval, [])
    for _ in range(3):
        resume(run_dir)
        assert evaluations_of(run_dir) == list(range(interval, 121, interval))
    assert identity(run_dir) == identity(unbroken)
    assert any(checkpoint.manifest()["best"] for checkpoint in list_checkpoints(run_dir))


@pytest.mark.parametrize("moment", ["crash", "kill"])
def test_an_evaluation_is_made_up_once_after_its_environments_crash_or_a_kill_before_it_is_saved(
    moment: str, tmp_path: Path
) -> None:
    evaluated = ("training.evaluation_interval=40", "training.total_timesteps=80")
    run_dir = tmp_path / "run"

    def crashes(*arguments: Any, **keywords: Any) -> Evaluation:
        raise EnvironmentCrashed("the ball is lost")

    def is_killed(self: WorldModelOrchestrator) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as failing, pytest.raises(SystemExit) as stopped:
        failing.setattr("reverie.orchestration.instruments.evaluate", crashes)
        start(run_dir, *CATCH, *evaluated)
    assert (stopped.value.code, saved_steps(run_dir)) == (ENVIRONMENT_EXIT_CODE, [40])
    if moment == "kill":
        with pytest.MonkeyPatch.context() as killing, pytest.raises(KeyboardInterrupt):
            killing.setattr(WorldModelOrchestrator, "save_if_possible", is_killed)
            resume(run_dir)
        assert evaluations_of(run_dir) == [40]
    resume(run_dir)
    assert evaluations_of(run_dir) == [40, 80]


def test_the_best_checkpoint_is_written_once_and_kept_where_episodes_end_together(tmp_path: Path) -> None:
    often = ("training.evaluation_interval=84", "training.evaluation_episodes=2")
    few = ("training.checkpoint_interval=84", "training.keep_checkpoints=1", "training.total_timesteps=252")
    run_dir = start(tmp_path / "run", *CATCH, *often, *few)
    written = [line for line in (run_dir / "train.log").read_text().splitlines() if ": checkpoint " in line]
    assert len(written) == 3
    tag = "evaluation/return_mean"
    returns = {line["step"]: line[tag] for line in metrics_of(run_dir) if tag in line}
    # The first of equal returns wins.
    best = max(returns, key=lambda step: returns[step])
    assert saved_steps(run_dir) == sorted({int(best), 252})
    assert [each.step for each in list_checkpoints(run_dir) if each.manifest()["best"]] == [best]


def test_a_checkpoint_after_the_best_one_could_not_be_saved_is_not_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(run_dir: Path, step: int, *arguments: Any) -> Checkpoint:
        if step == 84:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save_checkpoint(run_dir, step, *arguments)

    monkeypatch.setattr("reverie.orchestration.orchestrator.save_checkpoint", is_full)
    settings = ("training.evaluation_interval=84", "training.checkpoint_interval=84")
    run_dir = start(tmp_path / "run", *CATCH, *settings, "training.total_timesteps=100")
    assert evaluations_of(run_dir) == [84]
    assert "step 84: checkpoint failed: [Errno 28]" in (run_dir / "train.log").read_text()
    assert [(each.step, each.manifest()["best"]) for each in list_checkpoints(run_dir)] == [(100, False)]


def test_a_signal_counts_more_than_a_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = DreamerWorkflow.total
    calls = iter(range(10**6))

    def spoilt(self: DreamerWorkflow, losses: dict[str, torch.Tensor]) -> torch.Tensor:
        call = next(calls)
        # This call is one too many.
        if call == 33:
            os.kill(os.getpid(), signal.SIGTERM)
        return total(self, losses) * (1 if call < 30 else torch.nan)

    monkeypatch.setattr(DreamerWorkflow, "total", spoilt)
    run_dir = tmp_path / "run"
    with pytest.raises(SystemExit) as stopped:
        start(run_dir, *CATCH, "training.checkpoint_interval=60", "training.max_consecutive_nonfinite=4")
    assert stopped.value.code == RESUME_ME_EXIT_CODE
    assert (run_dir / "train.log").read_text().count("rolling back to the newest checkpoint") == 0


def test_too_many_non_finite_updates_end_a_step_that_owes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = DreamerWorkflow.total
    monkeypatch.setattr(DreamerWorkflow, "total", lambda self, losses: total(self, losses) * torch.nan)
    many = (
        "training.train_ratio=180",
        "training.max_updates_per_step=99",
        "training.max_consecutive_nonfinite=4",
    )
    with pytest.raises(SystemExit):
        start(tmp_path / "run", *CATCH, *many, "training.checkpoint_interval=0")
    log = (tmp_path / "run" / "train.log").read_text()
    assert (
        "4 updates in a row had a non-finite loss or gradient (training.max_consecutive_nonfinite=4)" in log
    )


@pytest.mark.parametrize(
    "moment",
    [
        "reverie.orchestration.instruments._log",
        "reverie.orchestration.instruments.Video._write",
    ],
)
def test_a_folder_that_moves_away_ends_the_run_and_is_not_made_again(
    moment: str,
    catch_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir, moved = tmp_path / "run", tmp_path / "moved"
    show = resolve_name(moment)

    def moving(*arguments: Any) -> None:
        [run] = (each for each in arguments if isinstance(each, WorldModelOrchestrator))
        if run.step > 152 and run_dir.exists():
            run_dir.rename(moved)
        show(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(moment, moving)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            start(run_dir, *CATCH)
    assert ended.value.code == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == (
        f"error: {run_dir} cannot be written: the folder was moved or deleted while the run wrote to it. "
        "Continue with resume=<new path>."
    )
    assert not run_dir.exists()
    resume(moved)
    assert identity(moved) == identity(catch_run)


def test_a_refusal_before_the_first_step_leaves_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir, taken = tmp_path / "runs" / "run", tmp_path / "taken"
    taken.mkdir()
    (taken / "config.yaml").write_text("not a mirror\n")
    for refused in ("logger.wandb=online", f"checkpoint.mirror={taken}"):
        for existed in (False, True):
            if existed:
                run_dir.mkdir(parents=True)
            with pytest.raises(SystemExit) as ended:
                start(run_dir, *CATCH, refused)
            told = capsys.readouterr().err.splitlines()[-1]
            assert ended.value.code == 2 and told.startswith(f"error: {refused.partition('=')[0]}"), told
            # An empty folder of the user, e.g. of a job, stays, but only if it existed.
            left = {run_dir.parent, run_dir} if existed else set()
            assert {*tmp_path.rglob("*")} - {taken, *taken.rglob("*")} == left
            shutil.rmtree(run_dir.parent, ignore_errors=True)


def test_strangers_among_the_shared_files_keep_no_checkpoint_from_being_written(
    catch_run: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(catch_run, run_dir)
    strangers = [
        run_dir / "checkpoints" / "replay" / ".ipynb_checkpoints",
        run_dir / "checkpoints" / "x.unfinished",
    ]
    strangers[0].mkdir()
    strangers[1].write_text("a plain file")
    resume(run_dir, "training.total_timesteps=340")
    assert saved_steps(run_dir) == [152, 300, 340]
    assert all(path.exists() for path in strangers)


def test_a_line_of_the_log_that_is_damaged_is_named_with_its_repair(
    catch_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(catch_run, run_dir)
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], lines[3][:20] + "\n", *lines[4:]]))
    before = path.read_bytes()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        resume(run_dir, "training.total_timesteps=320")
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == f"error: Line 4 of {path} was not written by Reverie. Delete this line and try again."
    assert path.read_bytes() == before
    path.write_text("".join([*lines[:3], *lines[4:]]))
    resume(run_dir, "training.total_timesteps=320")


def test_a_run_whose_episodes_are_too_short_to_learn_from_says_so(tmp_path: Path) -> None:
    alone = ("buffer.cross_episodes=false", "training.sequence_length=12", "training.learning_starts=60")
    run_dir = start(tmp_path / "run", *CATCH, *alone, "training.total_timesteps=120")
    log = (run_dir / "train.log").read_text()
    assert "step 120: no updates, because buffer.cross_episodes=false needs a stored episode" in log
