"""Tiny real runs, from the command line to their files."""

import itertools
import re
from pathlib import Path

import av
import pytest
from omegaconf import OmegaConf

from reverie.checkpoints.run_folder import load_run
from reverie.models import LEARNERS
from reverie.orchestration.recipes import recipe_of
from reverie.testing.fingerprint import reproducible

from ..runs.helpers import (
    CARTPOLE,
    CATCH_STEPS,
    PONG,
    differing,
    events_of,
    intervals_of,
    layout_of,
    metrics_of,
    saved_loop,
    saved_model,
    saved_records,
    saved_steps,
    scalars_of,
    series_of,
    start,
    tags_of,
    update_counts,
)

# Names that the incident reports use and users search for.
INCIDENT_TAGS = {
    "debug/cpu/rss_mb",
    "buffer/replay/total_steps",
    "buffer/replay/num_episodes",
    "buffer/replay/obs_bytes",
    "buffer/replay/aux_bytes",
    *(f"memory/{part}/size_mb" for part in ("replay", "networks", "optimizers")),
    *(f"memory/{part}/growth_mb_per_report" for part in ("replay", "networks", "optimizers")),
}
LEARNING_TAGS = {
    *(f"train/loss/{name}" for name in ("dynamics", "representation", "decoder/image", "reward", "continue")),
    *(f"train/loss/{name}" for name in ("policy", "value", "replay_value", "total")),
    *(f"train/{name}_entropy" for name in ("prior", "posterior", "policy")),
    *(f"train/{part}/{norm}_norm" for part in LEARNERS for norm in ("gradient", "clipped")),
    "train/return_scale",
    "train/updates",
}
SPEED_TAGS = {
    *(f"speed/{what}_per_second" for what in ("steps", "frames", "updates")),
    *(f"time/{phase}_fraction" for phase in ("collect", "sample", "update", "report")),
}


def test_a_run_of_pong_leaves_its_whole_folder(pong_run: Path) -> None:
    left = {path.name for path in pong_run.iterdir() if path.name != ".lock"}
    assert left == {"config.yaml", "train.log", "metrics.jsonl", "tensorboard", "videos", "checkpoints"}
    config = OmegaConf.load(pong_run / "config.yaml")
    assert (config.device, config.env.game, config.model.depth, config.training.train_ratio) == (
        "cpu",
        "pong",
        2,
        3.0,
    )
    # These are the newest two of 20, 40 and 60.
    assert saved_steps(pong_run) == [40, 60]
    assert saved_records(pong_run, 60, "observation.image").shape == (61, 64, 64, 3)


def test_the_log_tells_the_plan_the_progress_and_the_end(pong_run: Path) -> None:
    log = (pong_run / "train.log").read_text()
    assert "1 update per 4 agent steps (16 frames), 14 updates in total, from step 8" in log
    assert "step 40 of 60 (66.7%), 160 environment steps, no episode finished" in log
    assert log.rstrip().endswith(f"INFO finished: {pong_run}")
    assert not {"WARNING", "ERROR"} & set(log.split())


def test_the_run_makes_the_updates_that_the_banner_promises(pong_run: Path) -> None:
    assert saved_loop(pong_run, 60)["updates"] == 1 + (60 - 8) // 4
    assert [(line["step"], line["train/updates"]) for line in intervals_of(pong_run)] == [
        (20, 4),
        (40, 9),
        (60, 14),
    ]
    assert update_counts(pong_run, 60) == dict.fromkeys(LEARNERS, 14)


def test_event_files_hold_the_tags_that_users_know(pong_run: Path) -> None:
    events = events_of(pong_run)
    assert tags_of(events, "scalars") >= INCIDENT_TAGS | LEARNING_TAGS | SPEED_TAGS
    assert tags_of(events, "images") == {"video/open_loop/image", "image/open_loop/image"}
    assert tags_of(events, "text") == {"config"}
    assert not [tag for tag in tags_of(events, "scalars") if "gpu" in tag]


@pytest.mark.parametrize("run", ["pong_run", "cartpole_run"])
def test_custom_scalars_show_the_tags_of_a_run(run: str, request: pytest.FixtureRequest) -> None:
    events = events_of(request.getfixturevalue(run))
    charts = layout_of(events)
    titles = ["return", "losses", "KL divergence", "entropy", "throughput", "memory"]
    assert [chart.title for chart in charts] == titles
    found = {
        chart.title: {
            tag
            for tag in tags_of(events, "scalars")
            for each in chart.multiline.tag
            if re.fullmatch(each, tag)
        }
        for chart in charts
    }
    assert found["KL divergence"] == {"train/kl"}
    assert {"train/loss/total", "train/loss/policy", "train/loss/dynamics"} <= found["losses"]
    assert found["entropy"] == {f"train/{name}_entropy" for name in ("prior", "posterior", "policy")}
    assert found["throughput"] == {f"speed/{each}_per_second" for each in ("steps", "frames", "updates")}
    assert {"debug/cpu/rss_mb", "memory/replay/size_mb"} <= found["memory"]
    # No episode of Pong ends in this run.
    returns = set() if run == "pong_run" else {"episode/return", "recent/return"}
    assert found["return"] == returns


@pytest.mark.parametrize("run", ["pong_run", "cartpole_run", "catch_run"])
def test_metrics_jsonl_and_tensorboard_hold_the_same_values(run: str, request: pytest.FixtureRequest) -> None:
    run_dir = request.getfixturevalue(run)
    lines = metrics_of(run_dir)
    assert all(isinstance(value, float) for line in lines for tag, value in line.items() if tag != "step")
    assert scalars_of(events_of(run_dir)) == series_of(lines)


def test_an_open_loop_prediction_is_shown_and_kept_as_a_video(pong_run: Path) -> None:
    shown = [event.step for event in events_of(pong_run).Tensors("video/open_loop/image")]
    # Reports follow the interval. The end of each run is also reported, once.
    assert shown == [30, 60]
    names = [path.name for path in sorted((pong_run / "videos").iterdir())]
    assert names == ["open_loop_image_step_000000030.mp4", "open_loop_image_step_000000060.mp4"]
    with av.open(str(pong_run / "videos" / names[1])) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(frames) == 6
    # Truth, prediction and error are stacked, with captions and two windows side by side.
    assert frames[0].shape == (192, 60 + 128, 3)


def test_an_episode_of_catch_is_kept_as_a_video_from_its_first_frame_to_its_last(catch_run: Path) -> None:
    path = min((catch_run / "videos").glob("episode_*"))
    # This is the first of 4 environments.
    assert path.name == f"episode_step_{4 * CATCH_STEPS:09d}.mp4"
    with av.open(str(path)) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert [frame.shape for frame in frames] == [(256, 256, 3)] * (CATCH_STEPS + 1)


def test_every_finished_episode_is_reported_with_its_return_and_length(
    catch_run: Path, cartpole_run: Path
) -> None:
    episodes = [line for line in metrics_of(catch_run) if "episode/return" in line]
    # All four episodes end together, after 28 steps, 56 steps, and so on.
    ends = range(4 * CATCH_STEPS, 301, 4 * CATCH_STEPS)
    assert [line["step"] for line in episodes] == [end for end in ends for _ in range(4)]
    assert {line["episode/length"] for line in episodes} == {CATCH_STEPS}
    assert {line["episode/return"] for line in episodes} <= {-1.0, 1.0}

    episodes = [line for line in metrics_of(cartpole_run) if "episode/return" in line]
    ends = [0, *(line["step"] for line in episodes)]
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    assert [line["episode/length"] for line in episodes] == lengths
    # CartPole gives a reward of 1 per step.
    assert [line["episode/return"] for line in episodes] == lengths


def test_steps_count_actions_and_not_records(catch_run: Path) -> None:
    starts = 4 * (300 // (4 * CATCH_STEPS) + 1)
    assert saved_records(catch_run, 300, "is_first").sum() == starts
    assert intervals_of(catch_run)[-1]["buffer/replay/total_steps"] == 300 + starts


def test_the_controller_stands_still_until_the_warm_up_is_over(tmp_path: Path) -> None:
    settings = ("warmup_steps=100", "total_timesteps=140", "checkpoint_interval=40", "log_interval=40")
    run_dir = start(tmp_path / "run", *CARTPOLE, *(f"training.{setting}" for setting in settings))
    parts = recipe_of(load_run(str(run_dir))).build(load_run(str(run_dir)), tmp_path)
    parts.environment.close()
    new, saved = parts.workflow.state_dict(), {step: saved_model(run_dir, step) for step in (40, 80, 120)}
    for step in (40, 80):
        assert differing(new["controller"], saved[step]["controller"]) == set()
        for learner in ("actor", "critic"):
            assert differing(new["optimizers"][learner], saved[step]["optimizers"][learner]) == set()
    # The state is unchanged by step 40, because the first learning rate is 0.
    assert differing(new["world_model"], saved[80]["world_model"])
    assert any("actor" in name for name in differing(new["controller"], saved[120]["controller"]))
    # Updates are due at 40, 44, ...: fifteen before step 100, and eleven after it.
    assert update_counts(run_dir, 80) == {"world_model": 11, "actor": 0, "critic": 0}
    assert update_counts(run_dir, 140) == {"world_model": 26, "actor": 11, "critic": 11}
    intervals = [line for line in metrics_of(run_dir) if "train/updates" in line]
    assert [line["step"] for line in intervals if "train/loss/policy" not in line] == [40, 80]


def test_evaluation_during_training_leaves_training_as_it_was(tmp_path: Path, cartpole_run: Path) -> None:
    settings = ("training.evaluation_interval=100", "training.evaluation_episodes=3")
    lines = metrics_of(start(tmp_path / "run", *CARTPOLE, *settings))
    evaluations = [line for line in lines if "evaluation/return_mean" in line]
    assert [line["step"] for line in evaluations] == [100, 200, 300]
    # CartPole gives a reward of 1 per step.
    for line in evaluations:
        assert line["evaluation/return_mean"] == line["evaluation/length_mean"] >= 8
    others = [line for line in lines if "evaluation/return_mean" not in line]
    assert reproducible(others) == reproducible(metrics_of(cartpole_run))


def test_what_is_shown_of_a_run_does_not_change_what_it_learns(tmp_path: Path, pong_run: Path) -> None:
    quiet = ("training.video_interval=0", "logger.tensorboard=false", "logger.progress=plain")
    run_dir = start(tmp_path / "run", *PONG, *quiet)
    assert not (run_dir / "tensorboard").exists()
    assert reproducible(metrics_of(run_dir)) == reproducible(metrics_of(pong_run))


def test_the_log_has_a_line_of_memory_where_nothing_is_wrong(tmp_path: Path) -> None:
    settings = ("training.total_timesteps=120", "memory.report_interval=50")
    run_dir = start(tmp_path / "run", *CARTPOLE, *settings)
    log = (run_dir / "train.log").read_text()
    assert "Memory at step" not in log
    assert "memory/replay/size_mb" in (run_dir / "metrics.jsonl").read_text()
    for step in (50, 100, 120):
        [line] = [line for line in log.splitlines() if f"step {step}: components " in line]
        # The run is too short for a verdict.
        assert re.search(r"components use [\d.,]+ MB in \d+ parts$", line)
