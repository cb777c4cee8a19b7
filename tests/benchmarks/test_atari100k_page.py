"""The page of Atari-100k: written from raw data, for no run, for three games, and with a failed run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from benchmarks import atari100k_page
from benchmarks.atari100k_page import (
    AGENTS,
    PAGE,
    README,
    README_TABLE,
    RESULTS,
    aggregates_table,
    draw,
    normalized,
    page,
    read_baselines,
    read_results,
    readme_table,
    with_ours,
)
from reverie.checkpoints.run_folder import save_config
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed

RUNS = {"alien_seed_1": 2_000.0, "boxing_seed_1": 50.0, "pong_seed_1": 15.1, "pong_seed_2": None}


def write_run(folder: Path, name: str, mean: float | None) -> None:
    """Write the raw data that the queue writes for a run with 40 training episodes."""
    game, _, seed = name.partition("_seed_")
    arguments = ["experiment=fast_atari100k", f"env.game={game}", f"seed={seed}", "device=cpu"]
    [config] = compose_jobs(arguments)
    run = folder / name
    run.mkdir(parents=True)
    save_config(typed(config), run)
    episodes = [{"episode/return": float(at), "episode/length": 20_000} for at in range(40)]
    lines = [{"step": 2_500 * (at + 1), **episode} for at, episode in enumerate(episodes)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl.zst").write_bytes(zstandard.compress(text.encode()))
    if mean is not None:
        (run / "evaluation.json").write_text(json.dumps({"mean": mean, "standard_error": 2.5}))
    session = {"what": "training", "cpu": "A CPU", "commit": "0123456789ab"}
    summary = {"arguments": arguments, "steps": 100_000, "core_hours": 1.75}
    summary |= {"exit_code": 4 if mean is None else 0, "sessions": [session, {"what": "evaluation"}]}
    (run / "run.json").write_text(json.dumps(summary))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, mean in RUNS.items():
        write_run(tmp_path / "results", name, mean)
    return tmp_path / "results"


def cells(text: str, first: str) -> list[str]:
    """Return the other cells of the table row that starts with `first`."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_the_committed_pages_are_written_from_the_committed_raw_data() -> None:
    found = read_results(RESULTS)
    assert PAGE.read_text() == page(found)
    assert [each[0] for each in README_TABLE.finditer(README.read_text())] == [readme_table(found)]


def test_the_table_of_the_readme_has_the_games_in_the_order_of_the_list(results: Path) -> None:
    assert readme_table(read_results(results)).splitlines() == [
        "| Atari-100k, 3 of 26 games | Alien | Boxing | Pong |",
        "| --- | --- | --- | --- |",
        "| Reverie, on one CPU core | 2,000 | 50.0 | -2.8 |",
        "| DreamerV3 (Nature), on a GPU | 1,118 | 82.1 | -5.0 |",
    ]


def test_without_runs_the_page_has_the_commands_and_no_table(tmp_path: Path) -> None:
    text = page(read_results(tmp_path))
    assert "The runs are under way, and none is complete yet." in text
    assert "python -m benchmarks.queue runs=../runs core=1 " in text
    assert "## Protocol" in text and "|" not in text and "figures/" not in text


def test_the_first_paragraph_has_the_lost_games_failures_and_cost(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(atari100k_page.REASONS, "boxing", "a reason")
    paragraph = page(read_results(results)).split("\n\n")[2].replace("\n", " ")
    assert paragraph == (
        "Raw data exists for 3 of 26 games. Reverie scores lower than DreamerV3 (Nature) in 1 of them. "
        "Lower than all five seeds: Boxing (50.0, seeds 68.8 to 89.0: a reason). Failed: pong_seed_2. A "
        "failed run has the score of random. 4 runs used 7.0 core-hours."
    )
    write_run(results, "kangaroo_seed_1", 2_000.0)
    paragraph = page(read_results(results)).split("\n\n")[2].replace("\n", " ")
    assert "in the range of the five seeds: Kangaroo (2,000, seeds 1,050 to 4,800). Lower" in paragraph


def test_each_game_with_raw_data_has_a_row_of_scores_and_each_run_a_command(results: Path) -> None:
    text = page(read_results(results))
    # The mean of 15.1 and the score of random, -20.7.
    ours = "**-2.8 (1 of 2 runs failed)**"
    assert cells(text, "Pong") == ["-20.7", "14.6", "-5.0", "18.4", "19.9", ours, "2"]
    assert cells(text, "Alien") == ["228", "7,128", "1,118", "959", "740", "**2,000**", "1"]
    assert "| Breakout |" not in text
    run = cells(text, "[alien_seed_1](results/atari100k/alien_seed_1/run.json)")
    command = "`reverie-train experiment=fast_atari100k env.game=alien seed=1 device=cpu`"
    assert run == ["2,000 ± 2.5", "100,000", "1.75", "A CPU", "`0123456789ab`", command]
    failed = cells(text, "[pong_seed_2](results/atari100k/pong_seed_2/run.json)")
    assert failed[0] == "failed with exit code 4"


def test_aggregates_compare_all_agents_on_the_same_games(results: Path) -> None:
    scores = with_ours(read_results(results))
    assert list(scores) == ["alien", "boxing", "pong"]
    ours = normalized(scores, "reverie")
    expected = [(2_000 - 227.8) / (7127.7 - 227.8), (50 - 0.1) / 12, (-2.8 + 20.7) / 35.3]
    assert np.allclose(ours, expected)
    text = aggregates_table(scores)
    median = f"{sorted(expected)[1]:.2f} ({min(expected):.2f} to {max(expected):.2f})"
    assert cells(text, "Median")[-1] == median
    assert cells(text, "Mean")[-1].startswith(f"{np.mean(expected):.2f} (")
    assert cells(text, "Games at or above human") == ["1", "2", "2", "1"]


def test_baselines_have_the_published_aggregates_of_26_games() -> None:
    baselines = read_baselines()
    assert len(baselines) == 26
    found: dict[str, Any] = {agent: normalized(baselines, agent) for agent in [*AGENTS][:-1]}
    assert {agent: (round(each.mean(), 3), round(np.median(each), 3)) for agent, each in found.items()} == {
        "dreamerv3_nature": (1.245, 0.480),
        "dreamerv3_2023": (1.124, 0.485),
        "easimulus": (1.818, 0.773),
    }


def test_curves_are_drawn(results: Path, tmp_path: Path) -> None:
    found = read_results(results)
    curve = atari100k_page.curve_of(found[0].run)
    # The first mean is of returns 0 to 15. Eight emulators play 640,000 frames in an episode of this length,
    # so its middle is before the start.
    assert curve[0].tolist() == [0.0, 7.5] and curve.shape == (25, 2)
    assert curve[-1].tolist() == [np.mean([max(0, 10_000 * at - 320_000) for at in range(25, 41)]), 31.5]
    draw(found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
