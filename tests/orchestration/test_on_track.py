"""Runs are compared with other runs on their task. Good Pong seeds are never behind, but failed ones are."""

import logging
import runpy
from contextlib import closing
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from benchmarks.queue.rows import read_rows
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.envs.episodes import Episode
from reverie.orchestration.on_track import instrument
from reverie.orchestration.on_track.instrument import EPISODES, OnTrack, Reference, reference_of, usual_causes
from reverie.orchestration.recipes import recipe_of
from reverie.orchestration.reports import Reports
from reverie.planning.recipe import environment_spec
from reverie.utils.logging.config import ProgressMode
from reverie.utils.logging.json_lines import read_lines

from ..runs.helpers import (
    PONG,
    arrival,
    events_of,
    layout_of,
    metrics_of,
    resume,
    scalars_of,
    series_of,
    start,
)

LISTS = Path(__file__).parents[2] / "benchmarks"
RUNS = Path(__file__).parents[2] / "docs" / "results" / "dreamer_ataripong"
SHORT_GAMES = (
    *PONG,
    "env.num_envs=4",
    # This is 10 agent steps.
    "env.max_episode_frames=40",
    "training.batch_size=64",
    # This makes 128 trained steps per update, the cheapest possible.
    "training.sequence_length=2",
    "training.train_ratio=16",
    "training.learning_starts=68",
    "training.checkpoint_interval=130",
    "training.video_interval=0",
    "training.total_timesteps=240",
    "controller.horizon=1",
    "world_model.losses.decoder=false",
)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(RUNS / "scripts" / "on_track.py"))


@pytest.fixture(scope="module")
def curves(script: dict[str, Any]) -> dict[int, Any]:
    return script["references"]()


@cache
def reference_at(trained_steps: int) -> Reference:
    found = reference_of(configured(f"training.batch_size={trained_steps // 16}"))
    assert found is not None and found.agent is None
    return found


def published(*overrides: str) -> Reference:
    found = reference_of(configured(*overrides, experiment="fast_atari100k"))
    assert found is not None and found.agent is not None
    return found


def configured(*overrides: str, experiment: str = "dreamer_ataripong") -> DreamerTrainConfig:
    [job] = compose_jobs((f"experiment={experiment}", "device=cpu", *overrides))
    config = typed(job)
    assert isinstance(config, DreamerTrainConfig)
    return config


def compared(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    return [line for line in lines if "on_track/low" in line]


def test_the_reference_of_the_package_is_what_the_script_makes_of_the_logs(
    script: dict[str, Any], curves: dict[int, Any]
) -> None:
    shipped = Path(instrument.__file__).with_name("pong.json").read_text()
    assert shipped == script["as_json"](curves)


@pytest.mark.parametrize(
    ("run", "points", "updates"),
    [(f"long/b_seed{seed}", 45, 40_000) for seed in (1, 2, 3)]
    + [(f"seed_{seed}_cpu", 45, 35_000) for seed in (1, 2, 3)]
    + [("seed_1_h100", 45, 40_000)]
    + [(f"h100_seed_{seed}", 45, 40_000) for seed in (1, 2, 3)],
)
def test_a_good_seed_is_never_behind_when_it_is_left_out(
    script: dict[str, Any], curves: dict[int, Any], run: str, points: int, updates: int
) -> None:
    found = curves[script["pace_of"](run).trained_steps]
    [curve] = [curve for curve in found.curves if curve.source == run]
    others = script["without"](found, curve)
    assert len(others.curves) == len(found.curves) - 1 > 0
    assert len(curve.points) > points and curve.points[-1, 0] > updates
    reference = others.reference()
    assert not [point for point in curve.points if reference.standing(*point).is_behind]


def test_a_good_seed_that_is_not_in_the_reference_is_never_behind(script: dict[str, Any]) -> None:
    means = script["means_of"](RUNS / "controller_rate_1e-4_seed_7.jsonl", script["pace_of"]("seed_1"))
    assert len(means) > 15 and not [mean for mean in means if reference_at(128).standing(*mean).is_behind]


def test_a_run_made_bad_on_purpose_is_behind_in_its_own_log(script: dict[str, Any]) -> None:
    bad = "negative_frame_skip_16"
    means = script["means_of"](RUNS / bad / "metrics.jsonl", script["pace_of"](bad))
    behind = [standing for mean in means if (standing := reference_at(128).standing(*mean)).is_behind]
    assert 13_000 < behind[0].place < 15_000 and reference_at(128).standing(*means[-1]).is_behind


def test_the_band_does_not_fall_where_the_margin_grows(curves: dict[int, Any]) -> None:
    reference = reference_at(128)
    lows = [reference.standing(updates, 0.0).low for updates in np.arange(0.0, 80_000.0, 250.0)]
    margins = curves[128].margins
    assert margins[-1, 1] > 2 * margins[0, 1]
    assert lows[0] == -21 and lows[-1] > -15 and (np.diff(lows) >= 0).all()


def test_published_curves_say_nothing_before_20_000_updates_and_then_find_a_run_that_learns_nothing() -> None:
    reference = reference_at(1024)
    words = {n: str(reference.standing(1000.0 * n, -20.5)).partition(":")[0] for n in (5, 20, 28, 300)}
    assert words == dict.fromkeys((5, 20), "too early to say") | dict.fromkeys((28, 300), "behind")
    standing = str(reference.standing(40_000.0, 6.06))
    expected = "on track: return 6.1, reference -12.5 to 20.9 at 40,000 updates (14 runs, 10 published)"
    assert standing == expected
    assert not reference.standing(40_000.0, -12.5).is_behind and reference.standing(40_000.0, -12.6).is_behind
    # A run may start with trained networks.
    assert str(reference.standing(5_000.0, 20.0)).startswith("ahead: ")


def test_other_games_other_batches_and_other_suites_have_other_references() -> None:
    assert reference_at(128) != reference_at(1024)
    pong = published("training.batch_size=32")
    assert pong.agent == "DreamerV3 (Nature)" and pong != published("env.game=breakout")
    for setting in ("env.sticky_actions=0.25", "env.full_action_space=true"):
        assert reference_of(configured("env.game=breakout", setting)) is None
    assert reference_of(configured("env.game=tetris")) is None
    assert reference_of(configured(experiment="dreamer_catch")) is None


def test_a_published_curve_has_a_verdict_for_each_return() -> None:
    reference = published("env.game=breakout")
    # Points lie 10,000 frames apart, with 3.7 to 7.5 at 200,000.
    band = "reference 5.0 to 7.3 at 208,000 frames (DreamerV3 (Nature), 5 seeds, mean 6.1)"
    expected = {5.0: "behind", 5.1: "on track", 7.3: "on track", 7.4: "ahead"}
    said = {value: str(reference.standing(208_000.0, value)) for value in expected}
    assert said == {value: f"{word}: return {value}, {band}" for value, word in expected.items()}
    # The best of the author's seeds has 1.7 in its first episodes.
    assert str(reference.standing(5_000.0, 1.6)).startswith("too early to say: ")
    assert reference.end == 400_000
    # Every seed of the author stays at 0.
    assert str(published("env.game=freeway").standing(400_000.0, 0.0)).startswith("too early to say: ")


def test_every_game_of_the_benchmark_has_a_band_of_five_seeds() -> None:
    games = [row.overrides[0] for row in read_rows(LISTS / "atari100k.yaml").rows]
    # Pong with batches of 128 steps has its own.
    found = {game: published(game, "training.batch_size=16") for game in games}
    assert len(found) == 26
    for reference in found.values():
        lengths = {len(each) for each in (reference.low, reference.mean, reference.high)}
        assert lengths == {41} and set(reference.runs) == {5}
        ordered = np.array([reference.low, reference.mean, reference.high])
        assert (np.diff(ordered, axis=0) >= 0).all()


def test_a_run_is_compared_with_published_curves_at_equal_frames_up_to_their_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured("env.game=breakout", f"run_dir={tmp_path}", experiment="fast_atari100k")
    spec = environment_spec(config, recipe_of(config))
    caplog.set_level(logging.INFO)
    with closing(Reports(config, tmp_path, spec, ProgressMode.plain)) as reports:
        run: Any = SimpleNamespace(config=config, run_dir=tmp_path, reports=reports, updates=0, step=0)
        run.guard = MagicMock()
        follower = OnTrack(run)
        # Eight emulators: 500 steps of each are 16,000 frames of all.
        for run.step, run.updates in ((54_000, 2_000), (104_000, 27_000)):
            follower.add(run, arrival([0.0]), None, [Episode(0, 3.0, 500)] * EPISODES)
            assert follower.is_due(run)
            follower(run)
    [line] = compared(list(read_lines(tmp_path / "metrics.jsonl")))
    assert (line["on_track/frames"], line["on_track/return"]) == (54_000 * 4 - 8_000, 3.0)
    # It is behind, but so is every sixth seed as good as the author's, so it is not warned.
    [said] = [record for record in caplog.records if "reference" in record.getMessage()]
    assert said.levelname == "INFO"
    assert said.getMessage().startswith("step 54,000: behind: return 3.0, reference 5.0 to 7.3 at 208,000 fr")


def test_the_causes_are_those_that_the_settings_show() -> None:
    small, large = reference_at(128), reference_at(1024)
    assert "Usual causes: none visible in the settings." in usual_causes(configured(), small)
    wrong = configured(
        "env.action_repeat=16",
        "world_model.objective=reconstruction",
        "world_model.decoder_scale=1",
        "training.train_ratio=256",
        "optimizer.actor_learning_rate=null",
        "run_dir=experiments/wrong",
    )
    text = usual_causes(wrong, small)
    for cause in (
        "env.action_repeat=16: ",
        "world_model.decoder_scale=1: ",
        "training.train_ratio=256: ",
        "optimizer.learning_rate=0.001: ",
        "python -m benchmarks.pong_probe run=experiments/wrong ",
    ):
        assert cause in text
    # Published runs used 1,024.
    assert "train_ratio" not in usual_causes(wrong, large)


def test_a_run_that_learns_nothing_is_behind_and_warned_of_once(
    script: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Real games of a run with a frame skip of 16, at the updates where its flat curve meets the band."""
    config = configured("env.action_repeat=16", f"run_dir={tmp_path}")
    spec = environment_spec(config, recipe_of(config))
    lines = read_lines(RUNS / "negative_frame_skip_16" / "metrics.jsonl")
    games = [line for line in lines if "episode/return" in line][-EPISODES:]
    caplog.set_level(logging.INFO)
    ended = [Episode(0, game["episode/return"], int(game["episode/length"])) for game in games]
    with closing(Reports(config, tmp_path, spec, ProgressMode.plain)) as reports:
        run: Any = SimpleNamespace(
            config=config, run_dir=tmp_path, reports=reports, guard=MagicMock(), step=0
        )
        follower = OnTrack(run)
        for run.updates in range(2_000, 20_000, 2_000):
            follower.add(run, arrival([0.0]), None, ended)
            assert follower.is_due(run)
            follower(run)
    said = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    words = [text.split(": ")[1] for text in said]
    assert words == ["too early to say"] * 7 + ["behind"] * 2
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "env.action_repeat=16: " in warning


def test_a_run_logs_the_band_of_its_last_games_also_of_those_before_a_resume(
    script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reverie.orchestration.on_track.instrument.UPDATES_BETWEEN", 5)
    run = start(tmp_path / "run", *SHORT_GAMES, "training.total_timesteps=130")
    resume(run, "training.total_timesteps=240")
    by_script = script["means_of"](run / "metrics.jsonl", script["pace_of"](run))
    lines = compared(metrics_of(run))
    assert len(lines) == 2
    for line in lines:
        so_far = [each for each in metrics_of(run) if each["step"] <= line["step"]]
        returns = [each["episode/return"] for each in so_far if "episode/return" in each]
        updates, episode_return = by_script[len(returns) - EPISODES]
        assert line["on_track/return"] == np.mean(returns[-EPISODES:]) == episode_return
        # The script reads these values from log lines.
        assert line["on_track/updates"] == pytest.approx(updates, abs=1.0)
        standing = reference_at(128).standing(line["on_track/updates"], line["on_track/return"])
        assert (line["on_track/low"], line["on_track/high"]) == (standing.low, standing.high)
        assert f": {standing}\n" in (run / "train.log").read_text()
    events = events_of(run)
    assert scalars_of(events)["on_track/high"] == series_of(lines)["on_track/high"]
    band, *others = layout_of(events)
    [series] = band.margin.series
    assert (series.value, series.lower, series.upper) == ("on_track/return", "on_track/low", "on_track/high")
    assert others[0].title == "return"


def test_a_run_of_another_game_is_compared_with_nothing(catch_run: Path) -> None:
    charts = layout_of(events_of(catch_run))
    assert not compared(metrics_of(catch_run)) and charts[0].title == "return"
