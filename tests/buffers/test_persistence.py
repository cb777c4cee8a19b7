"""A replay that was saved and loaded goes on as if nothing had happened."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reverie.buffers import EpisodeReplayBuffer, LatentDtype, ReplayConfig, ReplayStorage, SequenceBatch
from reverie.utils.errors import UserError
from reverie.utils.records import ArraySpec

from .reference import ACTION, ToyWorld, advance, fill, held_values, make_buffer

NAMES = ("observation.image", "observation.speed", "action", "reward", "is_first", "is_last", "is_terminal")


def assert_same_batch(first: SequenceBatch, second: SequenceBatch) -> None:
    for key in first.observation:
        assert torch.equal(first.observation[key], second.observation[key])
    for name in ("action", "reward", "is_first", "is_last", "is_terminal"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert first.context is not None and second.context is not None
    assert torch.equal(first.context.deter, second.context.deter)
    assert torch.equal(first.context.stoch, second.context.stoch)
    assert first.positions.start.tolist() == second.positions.start.tolist()


@pytest.mark.parametrize("storage", [ReplayStorage.ram, ReplayStorage.mmap])
@pytest.mark.parametrize("latent_dtype", list(LatentDtype))
@pytest.mark.parametrize("cross_episodes", [True, False])
def test_a_loaded_buffer_goes_on_exactly_as_the_saved_one(
    tmp_path: Path, storage: ReplayStorage, latent_dtype: LatentDtype, cross_episodes: bool
) -> None:
    settings = {
        "num_envs": 2,
        "capacity": 60,
        "storage": storage,
        "latent_dtype": latent_dtype,
        "cross_episodes": cross_episodes,
        "directory": tmp_path / "arena",
    }
    buffer = make_buffer(**settings, chunk_length=4)
    world = fill(buffer, num_envs=2, steps=100)
    buffer.sample(5)  # so that the generator has moved
    buffer.save(tmp_path / "saved")
    loaded = make_buffer(**settings, chunk_length=7, seed=99)
    fill(loaded, num_envs=2, steps=50, seed=1)  # to be forgotten
    loaded.load(tmp_path / "saved")
    twin = ToyWorld(2, world.step, list(world.begins), list(world.previous))
    chances = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(10):
        for name in NAMES:
            assert torch.equal(held_values(loaded, name), held_values(buffer, name))
        assert (loaded.num_windows, loaded.num_episodes) == (buffer.num_windows, buffer.num_episodes)
        if buffer.can_sample:
            assert_same_batch(loaded.sample(8), buffer.sample(8))
        advance(buffer, world, 10, chances[0])
        advance(loaded, twin, 10, chances[1])


def test_an_empty_buffer_survives_the_round_trip(tmp_path: Path) -> None:
    make_buffer().save(tmp_path)
    loaded = make_buffer()
    fill(loaded, num_envs=1, steps=20)
    loaded.load(tmp_path)
    assert (loaded.total_steps, loaded.num_episodes, loaded.num_windows) == (0, 0, 0)
    fill(loaded, num_envs=1, steps=20)
    assert loaded.total_steps == 20


def test_an_episode_open_when_saved_counts_as_abandoned_when_the_next_begins(tmp_path: Path) -> None:
    buffer, world = make_buffer(window_length=4), ToyWorld(1)
    for _ in range(3):
        buffer.add(*world.advance(["go on"]))
    buffer.save(tmp_path)
    loaded = make_buffer(window_length=4)
    loaded.load(tmp_path)
    loaded.add(*ToyWorld(1).advance(["go on"]))
    assert loaded.num_episodes == 2
    batch = loaded.sample(1)
    assert batch.is_first[0].tolist() == [True, False, False, True]
    assert batch.is_last[0].tolist() == [False, False, True, False]


@pytest.mark.parametrize("cross_episodes", [True, False])
def test_a_resumed_run_may_take_longer_windows(tmp_path: Path, cross_episodes: bool) -> None:
    buffer = make_buffer(window_length=3, capacity=60, cross_episodes=cross_episodes)
    fill(buffer, num_envs=1, steps=90, episode_length=12)
    buffer.save(tmp_path)
    loaded = make_buffer(window_length=6, capacity=60, cross_episodes=cross_episodes)
    loaded.load(tmp_path)
    whole = make_buffer(window_length=6, capacity=60, cross_episodes=cross_episodes)
    fill(whole, num_envs=1, steps=90, episode_length=12)
    assert loaded.num_windows == whole.num_windows
    whole._generator.bit_generator.state = loaded._generator.bit_generator.state
    assert_same_batch(loaded.sample(8), whole.sample(8))


def test_longer_windows_never_reach_back_before_the_oldest_record(tmp_path: Path) -> None:
    buffer, world = make_buffer(window_length=3, capacity=4, cross_episodes=False), ToyWorld(1)
    for _ in range(20):  # one episode, of which all but the last four records are gone
        buffer.add(*world.advance(["go on"]))
    buffer.save(tmp_path)
    loaded = make_buffer(window_length=6, capacity=40, cross_episodes=False)
    loaded.load(tmp_path)
    for expected in (0, 1, 2):
        loaded.add(*world.advance(["go on"]))
        assert loaded.num_windows == expected


def test_saved_files_are_plain_arrays_and_json(tmp_path: Path) -> None:
    buffer = make_buffer(latent_dtype=LatentDtype.bfloat16)
    fill(buffer, num_envs=1, steps=30)
    buffer.save(tmp_path)
    image = np.load(tmp_path / "observation.image.npy", allow_pickle=False)
    np.testing.assert_array_equal(image, held_values(buffer, "observation.image").numpy())
    deter = torch.from_numpy(np.load(tmp_path / "deter.npy")).view(torch.bfloat16)
    assert torch.equal(deter, held_values(buffer, "deter"))
    assert json.loads((tmp_path / "index.json").read_text())["fields"]["deter"] == ["bfloat16", 2]


def test_saving_and_loading_need_little_more_than_a_chunk(tmp_path: Path) -> None:
    buffer = EpisodeReplayBuffer(
        ReplayConfig(capacity=400, chunk_length=10, store_latents=False),
        observation={"image": ArraySpec((64, 64, 3), np.dtype(np.uint8))},
        action=ACTION,
        num_envs=1,
        window_length=4,
        latent=None,
        generator=np.random.default_rng(0),
    )
    image, world = np.zeros((1, 64, 64, 3), np.uint8), ToyWorld(1)
    for _ in range(400):
        arrival, action, _ = world.advance(["go on"])
        buffer.add(replace(arrival, observation={"image": image}), action)
    tracemalloc.start()
    try:
        buffer.save(tmp_path)
        buffer.load(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "observation.image.npy").stat().st_size > 4_900_000
    assert peak < 400_000  # a chunk is 123,000 bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_envs": 1}, "holds the replay of 2 environments, but env.num_envs=1. Set env.num_envs=2."),
        ({"capacity": 20}, r"holds 40 steps, over buffer.capacity=20. Raise buffer.capacity to 40."),
        ({"store_latents": False}, r"deter was \['float16', 2\] and is None"),
        ({"latent_dtype": LatentDtype.bfloat16}, r"deter was \['float16', 2\] and is \['bfloat16', 2\]"),
    ],
)
def test_a_replay_that_does_not_fit_is_refused_untouched(tmp_path: Path, change: dict, message: str) -> None:
    buffer, world = make_buffer(num_envs=2), ToyWorld(2)
    for _ in range(20):
        buffer.add(*world.advance(["go on", "go on"]))
    buffer.save(tmp_path)
    other = make_buffer(**{"num_envs": 2, **change})
    with pytest.raises(UserError, match=message):
        other.load(tmp_path)
    assert other.total_steps == 0
