"""The queue: one row after another, stopped at any moment, resumed exactly, and its raw data."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ale_py import roms
from filelock import FileLock

from benchmarks.queue.command import main
from benchmarks.queue.rows import read_rows
from reverie.checkpoints.checkpoint import list_checkpoints
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.config.saved import read_config
from reverie.orchestration.dreamer.nonfinite import NONFINITE_EXIT_CODE
from reverie.orchestration.signals import RESUME_ME_EXIT_CODE
from reverie.utils.logging.json_lines import read_lines

from ..runs.helpers import CATCH, error_of, identity, start

ROOT = Path(__file__).parents[2]
LISTS = ROOT / "benchmarks"
CORE = min(os.sched_getaffinity(0))
CATCH_ROW = [
    *(setting for setting in CATCH if not setting.startswith(("experiment=", "device="))),
    "training.total_timesteps=600",
    "training.video_interval=0",
    "logger.tensorboard=false",
]
GAMES = (
    "alien amidar assault asterix bank_heist battle_zone boxing breakout chopper_command crazy_climber "
    "demon_attack freeway frostbite gopher hero jamesbond kangaroo krull kung_fu_master ms_pacman pong "
    "private_eye qbert road_runner seaquest up_n_down"
).split()


def write_list(path: Path, *rows: dict[str, Any], max_frames: int | None = None) -> Path:
    evaluation = {"episodes": 3, "max_frames": max_frames}
    path.write_text(json.dumps({"evaluation": evaluation, "rows": rows}))
    return path


def catch_row(name: str = "catch", *more: str) -> dict[str, Any]:
    return {"name": name, "experiment": "dreamer_catch", "overrides": [*CATCH_ROW, *more], "seed": 1}


def arguments(folder: Path, rows: Path) -> list[str]:
    return [f"runs={folder / 'runs'}", f"rows={rows}", f"results={folder / 'results'}", f"core={CORE}"]


@pytest.fixture(autouse=True)
def own_cores() -> Any:
    """The queue pins the process that calls it."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def started(words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.queue", *words]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for_updates(run: Path, beyond: int = 0) -> None:
    file = run / "metrics.jsonl"
    for _ in range(6000):
        if file.exists() and any(
            "train/updates" in line and line["step"] > beyond for line in read_lines(file)
        ):
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} has made no update beyond step {beyond} within five minutes")


def test_a_stopped_queue_resumes_the_run_and_ends_as_if_it_never_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_list(tmp_path / "rows.yaml", catch_row())
    words, run = arguments(tmp_path, rows), tmp_path / "runs" / "catch"
    step = 0
    for number in (signal.SIGTERM, signal.SIGINT):
        with started(words) as queue:
            wait_for_updates(run, beyond=step)
            os.killpg(queue.pid, number)
            output, _ = queue.communicate(timeout=60)
        assert queue.returncode == RESUME_ME_EXIT_CODE, output
        before, step = step, list_checkpoints(run)[-1].step
        assert before < step < 600
        stopped = f"stopped: catch is at step {step}. The same command continues it."
        assert output.splitlines()[-1] == stopped
    assert not (tmp_path / "results").exists()
    main([*words, "show=true"])
    assert capsys.readouterr().out == f"catch  interrupted: step {step}\n1 row: 1 interrupted\n"

    main(words)
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == "1 row: 1 done, not committed"
    check_raw_data(tmp_path / "results" / "catch", run)
    alone = start(tmp_path / "alone", *catch_settings(), "device=cpu")
    assert identity(run) == identity(alone)
    capsys.readouterr()

    # Finished rows are not repeated, even if their run folder is lost.
    shutil.rmtree(run)
    main(words)
    assert capsys.readouterr().out == shown.partition("\n")[2].partition("\n")[2]
    assert not run.exists()


def catch_settings() -> list[str]:
    return ["experiment=dreamer_catch", *CATCH_ROW, "seed=1"]


def check_raw_data(result: Path, run: Path) -> None:
    assert sorted(path.name for path in result.parent.iterdir()) == [result.name]
    assert sorted(path.name for path in result.iterdir()) == [
        "config.yaml",
        "evaluation.json",
        "metrics.jsonl.zst",
        "run.json",
    ]
    config = read_config(result / "config.yaml")
    assert (config.run_dir, config.threads, config.seed) == ("catch", 1, 1)
    assert list(read_lines(result / "metrics.jsonl")) == list(read_lines(run / "metrics.jsonl"))
    evaluation = json.loads((result / "evaluation.json").read_text())
    assert (evaluation["policy"], evaluation["step"]) == ("sample", 600)
    assert len(evaluation["returns"]) == 3
    found = json.loads((result / "run.json").read_text())
    assert (found["exit_code"], found["steps"], found["updates"]) == (0, 600, 141)
    assert found["arguments"] == [*catch_settings(), "device=cpu"]
    sessions = found["sessions"]
    assert [(each["what"], each["exit_code"]) for each in sessions] == [
        ("training", RESUME_ME_EXIT_CODE),
        ("training", RESUME_ME_EXIT_CODE),
        ("training", 0),
        ("evaluation", 0),
    ]
    assert all(each["cpu"] and each["commit"] and each["torch"] for each in sessions)
    spent = sum(each["core_seconds"] for each in sessions[:3])
    assert spent > 3 and found["core_hours"] == round(spent / 3600, 3)
    assert str(run.parent) not in "".join(path.read_text() for path in result.glob("*[nl]"))


def finished(folder: Path, run: Path, exit_code: int, max_frames: int | None = None) -> list[str]:
    """Return the arguments of a queue that was stopped after the training of its only row."""
    overrides = [setting for setting in CATCH if not setting.startswith(("experiment=", "device="))]
    row = {"name": "catch", "experiment": "dreamer_catch", "overrides": overrides, "seed": 0}
    rows = write_list(folder / "rows.yaml", row, max_frames=max_frames)
    shutil.copytree(run, folder / "runs" / "catch")
    session = {"what": "training", "core_seconds": 7200.0, "wall_seconds": 7200.0, "exit_code": exit_code}
    (folder / "runs" / "catch.sessions.json").write_text(json.dumps([session]))
    return arguments(folder, rows)


def test_after_training_only_the_evaluation_is_left_and_it_cuts_episodes(
    tmp_path: Path, catch_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(finished(tmp_path, catch_run, exit_code=0, max_frames=4))
    assert capsys.readouterr().out.splitlines()[-1] == "1 row: 1 done, not committed"
    result = tmp_path / "results" / "catch"
    evaluation = json.loads((result / "evaluation.json").read_text())
    assert (evaluation["lengths"], evaluation["max_steps"]) == ([4] * 3, 4)
    found = json.loads((result / "run.json").read_text())
    assert [session["what"] for session in found["sessions"]] == ["training", "evaluation"]
    assert found["core_hours"] == 2.0


def test_a_run_that_diverges_for_good_stays_in_the_list_as_failed(
    tmp_path: Path, catch_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = finished(tmp_path, catch_run, exit_code=NONFINITE_EXIT_CODE)
    main(words)
    capsys.readouterr()
    result = tmp_path / "results" / "catch"
    assert sorted(path.name for path in result.iterdir()) == ["config.yaml", "metrics.jsonl.zst", "run.json"]
    main(words)
    assert capsys.readouterr().out == (
        "catch  done, not committed: failed with exit code 4, 300 steps, 2.00 core-hours\n"
        "1 row: 1 done, not committed\n"
    )


def test_a_run_that_diverges_before_its_first_log_line_is_listed_too(
    tmp_path: Path, catch_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = finished(tmp_path, catch_run, exit_code=NONFINITE_EXIT_CODE)
    (tmp_path / "runs" / "catch" / "metrics.jsonl").write_text("")
    main(words)
    capsys.readouterr()
    main(words)
    assert "failed with exit code 4, 0 steps, 2.00 core-hours" in capsys.readouterr().out


def test_rows_that_another_queue_trains_are_skipped_and_a_killed_queue_takes_its_run_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forever = catch_row("forever", "training.total_timesteps=1000000")
    rows = write_list(tmp_path / "rows.yaml", forever, catch_row("other", "env.num_envs=2"))
    words, runs = arguments(tmp_path, rows), tmp_path / "runs"
    queue = started(words)
    try:
        wait_for_updates(runs / "forever")
        with FileLock(runs / "other.lock"):
            main(words)
            assert capsys.readouterr().out.splitlines()[-1] == "2 rows: 2 running"
        main([*words, "show=true"])
        assert capsys.readouterr().out.splitlines()[-1] == "2 rows: 1 running, 1 waiting"
    finally:
        queue.kill()
        queue.communicate(timeout=60)
    with FileLock(runs / "forever" / ".lock").acquire(timeout=30):
        assert list_checkpoints(runs / "forever"), "SIGTERM lets the run save"


def test_a_run_folder_with_other_settings_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_list(tmp_path / "rows.yaml", catch_row())
    other = [each for each in catch_settings() if "learning_starts" not in each]
    start(tmp_path / "runs" / "catch", *other, "training.total_timesteps=40")
    capsys.readouterr()
    message = error_of(capsys, lambda: main(arguments(tmp_path, rows)), has_output=True)
    assert message == (
        f"{tmp_path / 'runs' / 'catch'} was started with other settings than catch has in the list. "
        "Delete that folder, or choose another runs=."
    )


def test_a_run_that_cannot_start_ends_the_queue_with_the_place_of_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_list(tmp_path / "rows.yaml", catch_row("large", "buffer.memory_budget_gib=1e-6"))
    message = error_of(capsys, lambda: main(arguments(tmp_path, rows)), has_output=True)
    log = tmp_path / "runs" / "large.log"
    assert message == f"large ended with exit code 2: see {log}. The same command resumes it."
    assert "buffer.memory_budget_gib" in log.read_text()
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "runs is missing: give a folder outside the checkout, as in runs=../runs."),
        (
            [f"runs={ROOT / 'runs'}"],
            f"runs={ROOT / 'runs'} is inside the checkout. Choose a folder outside of it.",
        ),
        (["runs=../runs", "rows=none.yaml"], "rows=none.yaml cannot be read: No such file or directory."),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_created(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert error_of(capsys, lambda: main(words)) == message
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"name": "a", "experiment": "x", "seed": 1, "sed": 2}], "is not a list of runs: Key 'sed'"),
        ([{"name": "a", "experiment": "x"}], "has missing mandatory value: seed."),
        ([catch_row(), catch_row()], "has catch 2 times. Names must be unique."),
        ([], "rows.yaml has no row. benchmarks/atari100k.yaml shows the form."),
        ([catch_row("a/b")], "'a/b' cannot name a folder. Use letters, digits and _."),
    ],
)
def test_a_list_with_a_mistake_is_refused(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, Any]], message: str
) -> None:
    path = write_list(empty_folder / "rows.yaml", *rows)
    assert message in error_of(capsys, lambda: main(["runs=../runs", f"rows={path}", "show=true"]))


def test_a_system_that_cannot_pin_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # This simulates macOS.
    monkeypatch.delattr(os, "sched_setaffinity")
    rows = write_list(tmp_path / "rows.yaml", catch_row())
    message = error_of(capsys, lambda: main(arguments(tmp_path, rows)))
    assert message.startswith(f"core={CORE}: the queue cannot pin itself to a core on {sys.platform}. Train")
    assert not (tmp_path / "runs").exists()


def test_the_games_are_all_26_in_the_order_of_a_seeded_shuffle() -> None:
    shuffled = sorted(GAMES)
    random.Random(0).shuffle(shuffled)
    listed = read_rows(LISTS / "atari100k.yaml")
    assert [(row.overrides, row.seed) for row in listed.rows] == [
        *(([f"env.game={game}"], 1) for game in shuffled),
        (["env.game=pong"], 2),
        (["env.game=pong"], 3),
    ]
    for row in listed.rows:
        game = row.overrides[0].removeprefix("env.game=")
        assert row.name == f"{game}_seed_{row.seed}"
        assert game in roms.get_all_rom_ids()
    assert (listed.evaluation.episodes, listed.evaluation.max_frames) == (30, 27_000)


@pytest.mark.parametrize("name", ["atari100k", "atari100k_choice", "curious_replay"])
def test_every_row_of_a_committed_list_composes_and_is_one_run_of_100000_steps(name: str) -> None:
    listed = read_rows(LISTS / f"{name}.yaml")
    for row in listed.rows:
        [job] = compose_jobs(row.settings)
        assert typed(job).training.total_timesteps == 100_000
    assert name != "atari100k_choice" or len(listed.rows) <= 12


def test_scripts_next_to_the_queue_find_the_queue_of_the_standard_library() -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.path.insert(0, 'benchmarks'); import queue; print(queue.Queue)",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "<class 'queue.Queue'>\n"
