"""A replay continues unchanged after saving and loading, and a save writes only new data."""

import gc
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from heapwatch.counters.glibc import in_use_bytes
from safetensors.torch import load_file

from reverie.buffers import (
    EpisodeReplayBuffer,
    LatentDtype,
    LatentSpec,
    ReplayConfig,
    ReplaySpec,
    ReplayStorage,
    SequenceBatch,
    StoredLatent,
)
from reverie.utils.errors import UserError
from reverie.utils.timestep import ArraySpec

from ..runs.measured_update import InUsePeak
from .reference import ACTION, LATENT, OUTCOMES, ToyWorld, advance, fill, held_values, make_buffer
from .saved import Saves, full_copy, same_content


@pytest.mark.parametrize("store_latents", [True, False])
@pytest.mark.parametrize("cross_episodes", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_chain_of_saves_equals_full_copies(
    tmp_path: Path, store_latents: bool, cross_episodes: bool, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    # Each kind is tested with both dtypes.
    storage = (ReplayStorage.ram, ReplayStorage.mmap)[(seed + cross_episodes) % 2]
    num_envs, capacity = int(chance.integers(1, 4)), int(chance.integers(15, 80))

    def make() -> EpisodeReplayBuffer:
        return make_buffer(
            num_envs=num_envs,
            capacity=capacity,
            chunk_length=int(chance.integers(1, 9)),
            # Data saved by the other kind can also be loaded.
            compressed=bool(chance.integers(2)),
            storage=storage,
            store_latents=store_latents,
            cross_episodes=cross_episodes,
            latent_dtype=list(LatentDtype)[seed % 2],
            directory=tmp_path / "arena",
            seed=int(chance.integers(100)),
        )

    buffer, world = make(), ToyWorld(num_envs)
    saves, copies = Saves(tmp_path / "saves", keep=3), []
    for _ in range(25):
        live(buffer, world, chance)
        # This save fails or is killed, and must not count.
        if chance.random() < 0.2:
            saves.write(buffer)
            saves.clean()
        if chance.random() < 0.5:
            saves.save(buffer)
            copies = [*copies, full_copy(buffer)][-saves.keep :]
        # A resumed run extends the same chain of files.
        if chance.random() < 0.2 and copies:
            other, elsewhere = make(), ToyWorld(num_envs)
            for _ in range(8):
                # Loading must discard this content.
                live(other, elsewhere, chance)
            buffer = saves.load(other)
            assert same_content(full_copy(buffer), copies[-1])
            saves.kept[:-1], copies[:-1] = [], []
            saves.clean()
    assert len(copies) == len(saves.kept)
    for which, copy in enumerate(copies):
        loaded = saves.load(make(), which)
        assert same_content(full_copy(loaded), copy)
    needed = {name for _, saved in saves.kept for name in saved.shared}
    assert {path.name for path in saves.shared.iterdir()} == needed


def live(buffer: EpisodeReplayBuffer, world: ToyWorld, chance: np.random.Generator) -> None:
    """Add some records, and write some latents back."""
    for _ in range(int(chance.integers(12))):
        outcomes = chance.choice(OUTCOMES, size=world.num_envs, p=[0.7, 0.1, 0.1, 0.1])
        arrival, action, latent = world.advance(outcomes.tolist())
        buffer.add(arrival, action, latent if buffer.stores_latents else None)
    for _ in range(int(chance.integers(4)) * buffer.can_sample):
        batch = buffer.sample(2)
        if buffer.stores_latents:
            size = (2, buffer.window_length - 1)
            deter = torch.from_numpy(chance.normal(size=(*size, LATENT.deter_size)))
            stoch = torch.from_numpy(chance.integers(256, size=(*size, LATENT.num_latents)))
            buffer.write_back(batch.positions, deter, stoch)


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
    # This advances the generator.
    buffer.sample(5)
    saves = Saves(tmp_path / "saves")
    saves.save(buffer)
    loaded = make_buffer(**settings, chunk_length=7, seed=99)
    # Loading must discard this content.
    fill(loaded, num_envs=2, steps=50, seed=1)
    saves.load(loaded)
    twin = ToyWorld(2, world.step, list(world.begins), list(world.previous))
    chances = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(10):
        for name in NAMES:
            assert torch.equal(held_values(loaded, name), held_values(buffer, name))
        assert (loaded.num_windows, loaded._index.num_episodes) == (
            buffer.num_windows,
            buffer._index.num_episodes,
        )
        if buffer.can_sample:
            assert_same_batch(loaded.sample(8), buffer.sample(8))
        advance(buffer, world, 10, chances[0])
        advance(loaded, twin, 10, chances[1])


def test_an_empty_buffer_survives_the_round_trip(tmp_path: Path) -> None:
    saves = Saves(tmp_path)
    saves.save(make_buffer())
    loaded = make_buffer()
    fill(loaded, num_envs=1, steps=20)
    saves.load(loaded)
    assert (loaded.total_steps, loaded._index.num_episodes, loaded.num_windows) == (0, 0, 0)
    fill(loaded, num_envs=1, steps=20)
    assert loaded.total_steps == 20


def test_an_episode_open_when_saved_counts_as_abandoned_when_the_next_begins(tmp_path: Path) -> None:
    buffer, world = make_buffer(window_length=4), ToyWorld(1)
    for _ in range(3):
        buffer.add(*world.advance(["go on"]))
    saves = Saves(tmp_path)
    saves.save(buffer)
    loaded = make_buffer(window_length=4)
    saves.load(loaded)
    loaded.add(*ToyWorld(1).advance(["go on"]))
    assert loaded._index.num_episodes == 2
    batch = loaded.sample(1)
    assert batch.is_first[0].tolist() == [True, False, False, True]
    assert batch.is_last[0].tolist() == [False, False, True, False]


@pytest.mark.parametrize("cross_episodes", [True, False])
def test_a_resumed_run_may_take_longer_windows(tmp_path: Path, cross_episodes: bool) -> None:
    buffer = make_buffer(window_length=3, capacity=60, cross_episodes=cross_episodes)
    fill(buffer, num_envs=1, steps=90, episode_length=12)
    saves = Saves(tmp_path)
    saves.save(buffer)
    loaded = make_buffer(window_length=6, capacity=60, cross_episodes=cross_episodes)
    saves.load(loaded)
    whole = make_buffer(window_length=6, capacity=60, cross_episodes=cross_episodes)
    fill(whole, num_envs=1, steps=90, episode_length=12)
    assert loaded.num_windows == whole.num_windows
    whole._generator.bit_generator.state = loaded._generator.bit_generator.state
    assert_same_batch(loaded.sample(8), whole.sample(8))


def test_longer_windows_never_reach_back_before_the_oldest_record(tmp_path: Path) -> None:
    buffer, world = make_buffer(window_length=3, capacity=4, cross_episodes=False), ToyWorld(1)
    # This is one episode, of which all but the last four records are evicted.
    for _ in range(20):
        buffer.add(*world.advance(["go on"]))
    saves = Saves(tmp_path)
    saves.save(buffer)
    loaded = make_buffer(window_length=6, capacity=40, cross_episodes=False)
    saves.load(loaded)
    for expected in (0, 1, 2):
        loaded.add(*world.advance(["go on"]))
        assert loaded.num_windows == expected


def test_saved_files_are_plain_tensors_and_json(tmp_path: Path) -> None:
    buffer = make_buffer(latent_dtype=LatentDtype.bfloat16)
    fill(buffer, num_envs=1, steps=30)
    saved = Saves(tmp_path).save(buffer)
    files = [load_file(tmp_path / "replay" / segment.file) for segment in saved.segments]
    open_chunk = load_file(tmp_path / "save_0" / "replay_open.safetensors")
    files.append({name.removeprefix("0/"): values for name, values in open_chunk.items()})
    image = torch.cat([file["observation.image"] for file in files])
    held = held_values(buffer, "observation.image")
    assert torch.equal(image[-len(held) :], held)
    latents = load_file(tmp_path / "replay" / saved.latents[0].file)
    assert torch.equal(latents["deter"], held_values(buffer, "deter"))
    assert latents["index"].tolist() == list(range(30 - len(held), 30))
    index = json.loads((tmp_path / "save_0" / "replay.json").read_text())
    assert index["fields"]["deter"] == ["bfloat16", 2]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_bytes_written_for_new_steps_do_not_grow_with_the_fill(tmp_path: Path, num_envs: int) -> None:
    buffer = make_buffer(num_envs=num_envs, capacity=20_000, chunk_length=16, store_latents=False)
    saves, world, chance = Saves(tmp_path), ToyWorld(num_envs), np.random.default_rng(0)
    costs = []
    # These are 64 steps of each environment, or 4 chunks.
    for _ in range(20):
        for _ in range(64):
            arrival, action, _ = world.advance(chance.choice(OUTCOMES, num_envs).tolist())
            buffer.add(arrival, action)
        before = set(saves.bytes_of()) if saves.kept else set()
        saves.save(buffer)
        sizes = saves.bytes_of()
        index = sizes.pop("replay.json")
        new = [name for name in sizes if name not in before or name == "replay_open.safetensors"]
        assert len(new) == 4 * num_envs + 1
        costs.append((sum(sizes[name] for name in new), index))
    assert buffer.total_steps == 64 * 20 * num_envs
    assert len({cost for cost, _ in costs}) == 1
    growth = (costs[-1][1] - costs[0][1]) / (4 * num_envs * 19)
    # Only the index grows, by this number of bytes per chunk.
    assert growth < 150


def test_only_latents_that_changed_are_written(tmp_path: Path) -> None:
    buffer, saves = make_buffer(capacity=200, window_length=5), Saves(tmp_path)
    world = fill(buffer, num_envs=1, steps=100)
    assert [link.rows for link in saves.save(buffer).latents] == [100]
    advance(buffer, world, 7, np.random.default_rng(0))
    batch = buffer.sample(1)
    rewrite(buffer, batch)
    changed = {*range(100, 107), *(int(batch.positions.start[0]) + np.arange(1, 5)).tolist()}
    saved = saves.save(buffer)
    assert [link.rows for link in saved.latents] == [100, len(changed)]
    latents = load_file(saves.shared / saved.latents[-1].file)
    assert set(latents["index"].tolist()) == changed
    # Without changes, no files are written.
    assert len(saves.save(buffer).latents) == 2


def rewrite(buffer: EpisodeReplayBuffer, batch: SequenceBatch) -> None:
    """Write other latents back for a batch."""
    size = batch.action.shape[0], buffer.window_length - 1
    stoch = torch.full((*size, LATENT.num_latents), 255)
    buffer.write_back(batch.positions, torch.full((*size, LATENT.deter_size), -1.0), stoch)


def test_latents_cost_at_most_twice_what_changed_and_a_chain_stays_short(tmp_path: Path) -> None:
    buffer, saves = make_buffer(capacity=100, window_length=5), Saves(tmp_path)
    world, chance = fill(buffer, num_envs=1, steps=120), np.random.default_rng(0)
    changed = written = len(saves.save(buffer).latents) and buffer.total_steps
    seen = {link.file for link in saves.kept[-1][1].latents}
    for _ in range(60):
        advance(buffer, world, 3, chance)
        rewrite(buffer, buffer.sample(4))
        changed += int(buffer._files.changed.sum())
        chain = saves.save(buffer).latents
        written += sum(link.rows for link in chain if link.file not in seen)
        seen |= {link.file for link in chain}
        assert sum(link.rows for link in chain) < 2 * buffer.config.capacity
        assert written <= 2 * changed
    assert len({link.file for _, saved in saves.kept for link in saved.latents}) < len(seen) / 2


def test_a_shared_file_that_vanished_is_written_again(tmp_path: Path) -> None:
    buffer, saves = make_buffer(num_envs=2, capacity=200), Saves(tmp_path, keep=1)
    world = fill(buffer, num_envs=2, steps=60)
    saved = saves.save(buffer)
    for name in (saved.segments[2].file, saved.latents[0].file):
        (saves.shared / name).unlink()
    (saves.shared / saved.segments[-1].file).write_bytes(b"cut")
    advance(buffer, world, 5, np.random.default_rng(0))
    saves.save(buffer)
    assert same_content(full_copy(saves.load(make_buffer(num_envs=2, capacity=200))), full_copy(buffer))


def test_a_file_of_another_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    first, second = make_buffer(capacity=200), make_buffer(capacity=200)
    fill(first, num_envs=1, steps=50, seed=0)
    fill(second, num_envs=1, steps=50, seed=1)
    saves = Saves(tmp_path)
    # A run resumed from an earlier checkpoint finds files of a later one.
    saves.save(first)
    saves.save(second)
    for which, buffer in enumerate((first, second)):
        loaded = saves.load(make_buffer(capacity=200), which)
        assert same_content(full_copy(loaded), full_copy(buffer))


def test_another_folder_gets_everything(tmp_path: Path) -> None:
    buffer = make_buffer(capacity=200)
    fill(buffer, num_envs=1, steps=50)
    Saves(tmp_path / "one").save(buffer)
    other = Saves(tmp_path / "two")
    other.save(buffer)
    assert same_content(full_copy(other.load(make_buffer(capacity=200))), full_copy(buffer))


def peak_of(call: Callable[[], object]) -> int:
    """Return the peak of bytes in use during a call, minus the bytes before it."""
    gc.collect()
    before = in_use_bytes()
    with InUsePeak() as in_use:
        call()
    assert in_use.peak > 0
    return in_use.peak - before


def test_saving_and_loading_need_one_file_of_latents_more_and_no_more(tmp_path: Path) -> None:
    def make() -> EpisodeReplayBuffer:
        spec = ReplaySpec(
            ReplayConfig(capacity=1050),
            observation={"image": ArraySpec((32, 32, 3), np.dtype(np.uint8))},
            action=ACTION,
            num_envs=1,
            window_length=4,
            latent=LatentSpec(deter_size=16_384, num_latents=32),
        )
        return EpisodeReplayBuffer(spec, generator=np.random.default_rng(0))

    buffer, world = make(), ToyWorld(1)
    image = np.zeros((1, 32, 32, 3), np.uint8)
    latent = StoredLatent(torch.ones(1, 16_384), torch.ones(1, 32, dtype=torch.uint8))
    for _ in range(1050):
        arrival, action, _ = world.advance(["go on"])
        buffer.add(replace(arrival, observation={"image": image}), action, latent)
    saves = Saves(tmp_path)
    # The first call imports and caches.
    peak_of(lambda: make().save(tmp_path, tmp_path))
    assert peak_of(lambda: saves.save(buffer)) < 20_000_000
    sizes = saves.bytes_of()
    assert sum(sizes.values()) > 35_000_000
    assert max(size for name, size in sizes.items() if name.startswith("latents")) < 16_200_000
    other = make()
    assert peak_of(lambda: saves.load(other)) < 20_000_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_envs": 1}, "contains the replay of 2 environments, but env.num_envs=1. Set env.num_envs=2."),
        ({"capacity": 20}, r"contains 40 steps, more than buffer.capacity=20. Raise buffer.capacity to 40."),
        ({"store_latents": False}, r"deter was \['float16', 2\] and is None"),
        ({"latent_dtype": LatentDtype.bfloat16}, r"deter was \['float16', 2\] and is \['bfloat16', 2\]"),
    ],
)
def test_a_replay_that_does_not_fit_is_refused_untouched(tmp_path: Path, change: dict, message: str) -> None:
    buffer, world = make_buffer(num_envs=2), ToyWorld(2)
    for _ in range(20):
        buffer.add(*world.advance(["go on", "go on"]))
    saves = Saves(tmp_path)
    saves.save(buffer)
    other = make_buffer(**{"num_envs": 2, **change})
    with pytest.raises(UserError, match=message):
        saves.load(other)
    assert other.total_steps == 0
