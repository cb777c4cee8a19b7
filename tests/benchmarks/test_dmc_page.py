"""The page of the author's curves: written from raw data, for no run, and for three, of which one failed."""

import json
from pathlib import Path

import numpy as np
import pytest
import zstandard

from benchmarks import dmc_page
from benchmarks.atari100k_page import read_results
from benchmarks.dmc_page import PAGE, RESULTS, episodes_of, page, read_seeds, rounds, window_mean
from benchmarks.queue.rows import read_rows
from reverie.checkpoints.run_folder import save_config
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed

# Each round of 16 episodes ends after 16,000 environment steps, at a return that grows by this number.
TAGS = [theirs for theirs, _ in dmc_page.TRAINING_TAGS.values()]
RUNS = {"cartpole_balance": 100.0, "walker_walk": 100.0, "reacher_easy": None}


def write_run(folder: Path, task: str, growth: float | None, *more: str, name: str | None = None) -> None:
    """Write the raw data that the queue writes for a run with six rounds of 16 training episodes."""
    [row] = [row for row in read_rows(dmc_page.LIST).rows if row.name == task]
    [config] = compose_jobs([*row.settings, *more])
    run = folder / (name or task)
    run.mkdir(parents=True)
    save_config(typed(config), run)
    ends = [(8_000 * (at // 16 + 1), (growth or 0) * (at // 16 + 1)) for at in range(96)]
    lines = [{"step": step, "episode/return": value, "episode/length": 500} for step, value in ends]
    tags = ("train/updates", *(ours for _, ours in dmc_page.TRAINING_TAGS.values()))
    lines += [{"step": step, **dict.fromkeys(tags, 0.1 * step)} for step in range(10)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl.zst").write_bytes(zstandard.compress(text.encode()))
    if growth is not None:
        (run / "evaluation.json").write_text(json.dumps({"mean": 612.3, "standard_error": 2.5}))
    session = {"what": "training", "cpu": "A CPU", "commit": "0123456789ab"}
    summary = {"arguments": row.settings, "steps": 50_000, "core_hours": 3.25, "sessions": [session]}
    (run / "run.json").write_text(json.dumps(summary | {"exit_code": 4 if growth is None else 0}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for task, growth in RUNS.items():
        write_run(tmp_path / "results", task, growth)
    rate = "optimizer.learning_rate=2e-4"
    write_run(tmp_path / "results", "walker_walk", 150.0, rate, name="walker_walk_rate")
    # The 16 environments of the author's code end their episodes at different steps.
    steps = [16_032 * (at // 16 + 1) - 30 + 2 * (at % 16) for at in range(96)]
    lines = [{"step": step, "episode/score": 90.0 * (at // 16 + 1)} for at, step in enumerate(steps)]
    (tmp_path / "results" / "cartpole_balance_author").mkdir()
    scores = tmp_path / "results" / "cartpole_balance_author" / "scores.jsonl"
    scores.write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = [{"step": at, "train/opt/updates": at} | dict.fromkeys(TAGS, 0.5) for at in range(9)]
    metrics.append({"step": 1, "replay/size": 3})
    scores.with_name("training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (tmp_path / "long_parity").mkdir()
    factors = {"author_0": 1.0, "author_1": 3.0, "reverie_0": 1.02, "reverie_1": 3.03, "before_0": 4.0}
    factors |= {"bfloat16/author_0": 1.0, "bfloat16/reverie_0": 1.04}
    (tmp_path / "long_parity" / "bfloat16").mkdir()
    for run, factor in factors.items():
        numbers = "".join(f"{at},{0.25 * factor * at / 900},{at * factor}\n" for at in (800, 900))
        (tmp_path / "long_parity" / f"{run}.csv").write_text(f"updates,value,advantage (std)\n{numbers}")
    return tmp_path / "results"


def cells(text: str, name: str) -> list[str]:
    """Return the cells of the rows whose first cell contains a name, without that cell."""
    lines = [line.split("|") for line in text.splitlines() if line.startswith("|")]
    [row] = [line for line in lines if name in line[1]]
    return [cell.strip() for cell in row[2:-1]]


def test_the_committed_page_is_written_from_the_committed_raw_data() -> None:
    assert PAGE.read_text() == page(RESULTS)


def test_without_runs_the_page_has_the_commands_and_no_table(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "The runs are under way, and none is complete yet." in text
    assert "experiment=paper_dmc_proprio env.task=cartpole_balance" in text
    assert "|" not in text and "figures/" not in text


def test_the_author_has_five_seeds_of_ten_points_for_each_task_of_the_list() -> None:
    seeds = read_seeds()
    assert set(seeds) <= {row.name for row in read_rows(dmc_page.LIST).rows}
    for points in seeds.values():
        assert [each.shape for each in points] == [(2, 10)] * 5
        assert all(each[0].tolist() == list(range(10_000, 100_001, 10_000)) for each in points)
    # These means were computed from the score file independently.
    assert [round(window_mean(each)) for each in seeds["walker_walk"]] == [237, 421, 440, 484, 437]


def test_the_mean_covers_the_episodes_that_end_in_the_window(results: Path) -> None:
    found = read_results(results, "env.task")[0]
    # Rounds end after 16,000, 32,000 ... 96,000 environment steps. The last three are in the window.
    assert np.unique(episodes_of(found)[0]).tolist() == [16_000.0 * at for at in range(1, 7)]
    assert window_mean(episodes_of(found)) == np.mean([400, 500, 600])


def test_the_episodes_of_the_authors_code_are_averaged_by_round(results: Path) -> None:
    points = dmc_page.author_runs(results)["cartpole_balance"]
    # The last of 16 episodes ends 30 steps after the first.
    assert rounds(points).T.tolist() == [[16_032.0 * at - 15, 90.0 * at] for at in range(1, 7)]
    # After a resume in the middle of a round, all rounds end half a round later.
    late = points + np.array([[8_000], [0]])
    assert rounds(late)[1].tolist() == rounds(points)[1].tolist()


def test_each_run_has_a_row_and_the_first_paragraph_the_tasks_below(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dmc_page.REASONS, "cartpole_balance", "a reason")
    # The mean of both seeds is above the author's lowest seed, and this one is below.
    write_run(results, "walker_walk", 20.0, "seed=7", name="walker_walk_seed_7")
    text = page(results)
    assert cells(text, "cartpole_balance, author ")[:3] == ["12M", "4e-05", "596 to 782"]
    costs = ["612 ± 2.5", "3.25", "`0123456789ab`"]
    assert cells(text, "[cartpole_balance, Reverie]") == ["1M", "4e-05", "**500**", *costs]
    assert cells(text, "[cartpole_balance, author's code]")[:3] == ["1M", "4e-05", "450"]
    assert cells(text, "(results/dmc_curves/walker_walk_rate/run.json)")[:3] == ["1M", "0.0002", "**750**"]
    assert cells(text, "[reacher_easy, Reverie]")[2:4] == ["-", "failed with exit code 4"]
    # The run with another learning rate is not counted.
    assert text.split("\n\n")[2].replace("\n", " ") == (
        "Raw data exists for 3 of 4 tasks, with 1 million parameters for Reverie and 12 million for the "
        "author. From 50,000 to 100,000 environment steps, Reverie's mean return is at or above the author's "
        "lowest seed in 1 of them. Below: cartpole_balance (500, lowest seed 596: a reason). Failed: "
        "reacher_easy."
    )


def test_runs_on_the_same_batches_are_compared_by_seed(results: Path) -> None:
    text = page(results)
    assert cells(text, "value") == ["0.25, 0.75", "0.255, 0.757", "1"]
    assert cells(text, "advantage (std)") == ["900, 2.7e+03", "918, 2.73e+03", "3.6e+03"]
    assert "differ from the author's by at most 2.0 %." in text.replace("\n ", "")
    assert "in bfloat16, seed 0 differs by at most 4.0 % (" in text


def test_curves_are_drawn(results: Path, tmp_path: Path) -> None:
    for draw in (dmc_page.draw, dmc_page.draw_training):
        draw(results, tmp_path / "figure.png")
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
        (tmp_path / "figure.png").unlink()
