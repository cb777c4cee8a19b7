"""A run that starts with episodes from disk, and a run that learns only from them."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from reverie.episodes import EpisodeSpec, Format, find_episodes, write_episodes
from reverie.testing.fingerprint import fingerprint, reproducible
from reverie.utils.timestep import ActionSpec, ArraySpec

from ..episodes.made import episode, plain
from ..runs.fixtures import started_once
from ..runs.helpers import (
    CARTPOLE,
    POPULATION,
    error_of,
    identity,
    intervals_of,
    metrics_of,
    resume,
    saved_records,
    saved_steps,
    start,
    update_counts,
)

VECTOR = EpisodeSpec({"vector": ArraySpec((4,), np.dtype(np.float32))}, ActionSpec(2, True))
LENGTHS = (12, 30, 9, 20, 40, 7, 25, 18)
OFFLINE = (*CARTPOLE, "env.num_envs=2", "training.offline=true")


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 161 artificial records of CartPole."""
    folder = tmp_path_factory.mktemp("episodes")
    write_episodes(folder, Format.own, [episode(VECTOR, n, seed=n) for n in LENGTHS], VECTOR)
    return folder


@pytest.fixture(scope="module")
def offline_run(episodes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 300 counted but not executed steps, with evaluations and checkpoints at 150 and 300."""
    settings = (
        f"buffer.prefill={episodes}",
        "training.evaluation_interval=150",
        "training.evaluation_episodes=2",
    )
    return started_once(tmp_path_factory, "offline", *OFFLINE, *settings)


def test_a_run_begins_with_its_prefill_spread_over_its_environments(episodes: Path, tmp_path: Path) -> None:
    settings = ("env.num_envs=3", f"buffer.prefill={episodes}", "training.total_timesteps=60")
    run = start(tmp_path / "run", *CARTPOLE, *settings)
    read = list(find_episodes(episodes).read(VECTOR.action))
    [step] = saved_steps(run)
    reward = saved_records(run, step, "reward").tolist()
    for env in range(3):
        expected = [value for each in read[env::3] for value in each.reward.tolist()]
        where = next(i for i in range(len(reward)) if reward[i : i + len(expected)] == expected)
        assert env == 0 or where > 0
    assert len(reward) > sum(LENGTHS) + step
    assert (saved_records(run, step, "is_last").sum() >= len(LENGTHS)) and update_counts(run, step)[
        "actor"
    ] > 0


def test_a_resumed_run_is_not_filled_again(episodes: Path, tmp_path: Path) -> None:
    filled = tmp_path / "filled"
    shutil.copytree(episodes, filled)
    run = start(tmp_path / "run", *CARTPOLE, f"buffer.prefill={filled}", "training.total_timesteps=60")
    before = len(saved_records(run, 60, "reward"))
    shutil.rmtree(filled)
    resume(run, "buffer.storage=mmap", "training.total_timesteps=80")
    assert len(saved_records(run, 80, "reward")) in range(before + 20, before + 30)
    files = set(run.rglob("*"))
    assert fingerprint(run)["step"] == "80"
    assert set(run.rglob("*")) == files


def test_a_population_begins_with_a_prefill(tmp_path: Path) -> None:
    spec = EpisodeSpec({"vector": ArraySpec((3,), np.dtype(np.float64))}, ActionSpec(1, False))
    write_episodes(tmp_path / "e", Format.dreamerv3, [episode(spec, 21)], spec)
    run = start(tmp_path / "run", *POPULATION, f"buffer.prefill={tmp_path / 'e'}", "training.generations=1")
    [step] = saved_steps(run)
    reward = saved_records(run, step, "reward")
    assert np.array_equal(reward[:21], episode(spec, 21).reward)


def test_offline_learning_makes_the_updates_owed_and_collects_nothing(offline_run: Path) -> None:
    lines = metrics_of(offline_run)
    assert update_counts(offline_run, 300) == dict.fromkeys(("world_model", "actor", "critic"), 1 + 298 // 4)
    assert [line["step"] for line in intervals_of(offline_run)] == [50, 100, 150, 200, 250, 300]
    assert {line["buffer/replay/total_steps"] for line in intervals_of(offline_run)} == {sum(LENGTHS)}
    assert not any("episode/return" in line for line in lines)
    assert [line["step"] for line in lines if "evaluation/return_mean" in line] == [150, 300]
    assert saved_steps(offline_run) == [150, 300]
    assert not list((offline_run / "videos").glob("episode_*"))


def test_a_resumed_offline_run_is_the_unbroken_one_bit_for_bit(
    offline_run: Path, episodes: Path, tmp_path: Path
) -> None:
    settings = (
        f"buffer.prefill={episodes}",
        "training.evaluation_interval=150",
        "training.evaluation_episodes=2",
    )
    half = start(tmp_path / "half", *OFFLINE, *settings, "training.total_timesteps=150")
    moved = shutil.copytree(half, tmp_path / "moved")
    resume(moved, "training.total_timesteps=300")
    assert identity(moved) == identity(offline_run)
    assert reproducible(metrics_of(moved)) == reproducible(metrics_of(offline_run))


def test_a_run_goes_on_offline_from_what_it_collected(cartpole_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(cartpole_run, tmp_path / "run")
    before = plain_records(run, 300)
    resume(run, "training.offline=true", "training.total_timesteps=340")
    assert plain_records(run, 340) == before
    assert update_counts(run, 340)["world_model"] == update_counts(run, 300)["world_model"] + 10


def plain_records(run: Path, step: int) -> list[bytes]:
    return [saved_records(run, step, name).tobytes() for name in ("observation.vector", "action", "reward")]


def test_offline_learning_from_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], empty_folder: Path, episodes: Path
) -> None:
    text = error_of(capsys, lambda: start(Path("run"), *OFFLINE))
    assert text.startswith("training.offline=true trains only on the replay, which is empty.")
    write_episodes(Path("short"), Format.own, [episode(VECTOR, 3)], VECTOR)
    text = error_of(capsys, lambda: start(Path("run"), *OFFLINE, "buffer.prefill=short"))
    assert "has 3 records, but no window of training.sequence_length=6" in text
    assert text.endswith("or prefill more episodes.")
    one_by_one = (*OFFLINE, "buffer.prefill=short", "buffer.cross_episodes=false")
    assert error_of(capsys, lambda: start(Path("run"), *one_by_one)).endswith(
        "or set buffer.cross_episodes=true."
    )
    longest = ("training.sequence_length=502", "training.learning_starts=600", "buffer.cross_episodes=false")
    text = error_of(capsys, lambda: start(Path("run"), *CARTPOLE, *longest))
    assert "the longest here has 501 records. Set training.sequence_length=501 or less" in text
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("spec", "settings", "reason"),
    [
        (
            EpisodeSpec({"vector": ArraySpec((5,), np.dtype(np.float32))}, ActionSpec(2, True)),
            (),
            "its observation `vector` is float32 (5,) instead of float32 (4,) in this environment.",
        ),
        (
            EpisodeSpec({"image": ArraySpec((4,), np.dtype(np.float32))}, ActionSpec(2, True)),
            (),
            "its observation `image` is float32 (4,) instead of missing",
        ),
        (
            EpisodeSpec(VECTOR.observation, ActionSpec(3, True)),
            (),
            "has actions (one of 3), but the environment has (one of 2). Choose episodes",
        ),
        (
            EpisodeSpec(VECTOR.observation, ActionSpec(2, False)),
            (),
            "has actions (2 numbers in [-1, 1]), but the environment has",
        ),
        (
            VECTOR,
            ("buffer.capacity=100",),
            "has 8 episodes of 161 records, over buffer.capacity=100, and only the first 4 fit. Raise "
            "buffer.capacity to 161.",
        ),
    ],
)
def test_a_prefill_that_does_not_fit_is_refused_before_anything_is_left_behind(
    capsys: pytest.CaptureFixture[str],
    empty_folder: Path,
    spec: EpisodeSpec,
    settings: tuple[str, ...],
    reason: str,
) -> None:
    write_episodes(Path("e"), Format.own, [episode(spec, n, seed=n) for n in LENGTHS], spec)
    run = (*CARTPOLE, "buffer.prefill=e", *settings)
    assert reason in error_of(capsys, lambda: start(Path("run"), *run))
    assert not Path("run").exists()


def test_a_prefill_beyond_what_a_compressed_budget_holds_is_refused(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    noise = [episode(VECTOR, 500, seed=seed) for seed in range(40)]
    write_episodes(Path("e"), Format.own, noise, VECTOR)
    small = ("buffer.capacity=20500", "buffer.compressed=true", "buffer.memory_budget_gib=0.0014")
    with pytest.raises(SystemExit) as failure:
        start(Path("run"), *CARTPOLE, "buffer.prefill=e", *small)
    *_, warning, message = capsys.readouterr().err.splitlines()
    assert failure.value.code == 2 and "buffer.memory_budget_gib" in warning
    assert "of them fit in buffer.memory_budget_gib=0.0014, even compressed. Raise" in message
    assert not Path("run").exists()


def test_a_prefill_with_an_episode_beyond_a_compressed_budget_is_refused(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    write_episodes(Path("e"), Format.own, [episode(VECTOR, 20_000, seed=0)], VECTOR)
    small = ("buffer.capacity=20500", "buffer.compressed=true", "buffer.memory_budget_gib=0.0014")
    message = error_of(capsys, lambda: start(Path("run"), *CARTPOLE, "buffer.prefill=e", *small))
    assert re.search(
        r"An episode has 20,000 records, but buffer\.memory_budget_gib=0\.0014 fits only", message
    )
    assert not Path("run").exists()


def test_floats_and_axes_become_those_of_the_environment(tmp_path: Path) -> None:
    wide = EpisodeSpec({"vector": ArraySpec((2, 2), np.dtype(np.float64))}, VECTOR.action)
    written = [episode(wide, 40, seed=seed) for seed in range(4)]
    write_episodes(tmp_path / "e", Format.own, written, wide)
    assert plain(list(find_episodes(tmp_path / "e").read(wide.action))) == plain(written)
    settings = (f"buffer.prefill={tmp_path / 'e'}", "training.total_timesteps=10")
    run = start(tmp_path / "run", *OFFLINE, *settings)
    found = saved_records(run, 10, "observation.vector")[:40]
    assert np.array_equal(found, written[0].observation["vector"].reshape(40, 4).astype(np.float32))
