"""Compressed replay: codes are lossless, capacity is in bytes, and damage is reported."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from reverie.buffers import (
    EpisodeRecords,
    EpisodeReplayBuffer,
    LatentSpec,
    ReplayConfig,
    ReplaySpec,
    ReplayStorage,
)
from reverie.buffers.codec import ChunkCodec, RecordLayout
from reverie.buffers.compressed import CompressedStore
from reverie.buffers.fields import FieldSpec
from reverie.buffers.pages import PAGE_BYTES, Pages
from reverie.utils.errors import UserError
from reverie.utils.timestep import ActionSpec, ArraySpec, TimeStep

from .reference import ToyWorld, advance, fill, make_buffer
from .saved import Saves

GIB = 2**30
IMAGE = ArraySpec((16, 16, 3), np.dtype(np.uint8))


def frames_buffer(num_envs: int = 1, window_length: int = 5, **config: Any) -> EpisodeReplayBuffer:
    """Return a compressed buffer of 768-byte images."""
    config = {"capacity": 4000, "chunk_length": 8, "compressed": True, "store_latents": False, **config}
    observation = {"image": IMAGE, "speed": ArraySpec((3,), np.dtype(np.float32))}
    spec = ReplaySpec(ReplayConfig(**config), observation, ActionSpec(2, True), num_envs, window_length, None)
    return EpisodeReplayBuffer(spec, generator=np.random.default_rng(0))


def add_frames(buffer: EpisodeReplayBuffer, images: np.ndarray, every: int = 50) -> None:
    """Add images (steps, envs, 16, 16, 3) in episodes of `every` records."""
    for step, image in enumerate(images):
        count = len(image)
        first, last = (np.full(count, step % every == at) for at in (0, every - 1))
        observation = {"image": image, "speed": np.full((count, 3), step, np.float32)}
        arrival = TimeStep(observation, np.full(count, step, np.float32), first, last, np.zeros(count, bool))
        buffer.add(arrival, np.zeros((count, 2), np.float32))


def noise(steps: int, num_envs: int = 1) -> np.ndarray:
    return np.random.default_rng(1).integers(256, size=(steps, num_envs, *IMAGE.shape), dtype=np.uint8)


@given(
    data=st.data(),
    count=st.integers(1, 9),
    changing=st.floats(0, 1),
    sizes=st.lists(st.sampled_from([(), (1,), (3,), (64,), (2, 32), (7, 5), (300,)]), min_size=1, max_size=4),
    dtypes=st.lists(
        st.sampled_from([torch.uint8, torch.bool, torch.float32, torch.float64, torch.int16]),
        min_size=4,
        max_size=4,
    ),
)
@settings(max_examples=80, deadline=None)
def test_a_code_gives_back_every_byte_of_any_part(
    data: st.DataObject, count: int, changing: float, sizes: list, dtypes: list
) -> None:
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    fields = {
        f"f{i}": FieldSpec(size, dtype) for i, (size, dtype) in enumerate(zip(sizes, dtypes, strict=False))
    }
    layout = RecordLayout(fields)
    codec, rows = ChunkCodec(layout), np.zeros((count, layout.num_words), np.uint64)
    values = {}
    for name, spec in fields.items():
        row = chance.integers(2, size=(count, spec.nbytes), dtype=np.uint8)
        # Many records equal the first one.
        row[1:][chance.random(count - 1) >= changing] = row[0]
        values[name] = torch.from_numpy(row).view(spec.dtype).reshape(count, *spec.shape)
    layout.pack(values, rows)
    code = codec.encode(rows)
    assert len(code) <= rows.nbytes
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    wanted = data.draw(st.sets(st.sampled_from(sorted(fields)), min_size=1))
    out = {name: torch.empty(stop - start, *fields[name].shape, dtype=fields[name].dtype) for name in wanted}
    targets, small = layout.targets(out, stop - start)
    codec.decode(code, count).paint(start, targets)
    layout.finish(small, out)
    for name, found in out.items():
        assert torch.equal(found.view(torch.uint8), values[name][start:stop].contiguous().view(torch.uint8))


def test_a_code_of_frames_that_hardly_change_is_small_and_one_of_noise_is_no_longer_than_the_frames() -> None:
    layout = RecordLayout({"image": FieldSpec((64, 64, 3), torch.uint8)})
    codec, rows = ChunkCodec(layout), np.zeros((48, layout.num_words), np.uint64)
    # This is a moving ball.
    rows[np.arange(48), np.arange(48) * 7] = 2**40
    assert len(codec.encode(rows)) < 500
    random = np.random.default_rng(0).integers(2**63, size=rows.shape, dtype=np.uint64)
    assert len(codec.encode(random)) <= random.nbytes
    np.testing.assert_array_equal(codec.rows(codec.encode(random), 48), random)


@given(lengths=st.lists(st.integers(1, 5 * PAGE_BYTES), min_size=1, max_size=60), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_strings_in_pages_come_back_whatever_was_freed_in_between(lengths: list[int], seed: int) -> None:
    chance = np.random.default_rng(seed)
    pages, held = Pages(np.zeros((40, PAGE_BYTES), np.uint8), 8), {}
    for length in lengths:
        string = int(chance.integers(8))
        pages.free(np.array([string]))
        held.pop(string, None)
        if -(-length // PAGE_BYTES) <= pages.num_free:
            held[string] = chance.bytes(length)
            pages.put(string, held[string])
        assert {name: bytes(pages.get(name)) for name in held} == held
        used = sum(-(-len(code) // PAGE_BYTES) for code in held.values())
        assert pages.num_free == 40 - used


def test_capacity_is_in_bytes_and_its_guarantee_includes_noise(caplog: pytest.LogCaptureFixture) -> None:
    buffer = frames_buffer(num_envs=2, memory_budget_gib=600_000 / GIB)
    plan = buffer.plan
    assert buffer.nbytes() == plan.nbytes <= 600_000
    assert 100 < plan.guaranteed < 4000
    images = noise(700, 2)
    with caplog.at_level(logging.WARNING):
        for step in range(0, 700, 50):
            add_frames(buffer, images[step : step + 50])
            # Eviction removes whole episodes.
            assert buffer.total_steps >= min(2 * (step + 50), plan.guaranteed - 2 * 50)
    assert buffer.total_steps < 4000
    assert [record.message.partition(" is full with ")[0] for record in caplog.records] == [
        "replay: buffer.memory_budget_gib=0.000558794"
    ]
    still = np.zeros((2200, 2, *IMAGE.shape), np.uint8)
    add_frames(buffer, still)
    # With compressible data the capacity is the limit again.
    assert buffer.total_steps > 4000 - 2 * 50
    assert buffer.nbytes() == plan.nbytes


def test_a_plan_counts_the_bytes_that_the_buffer_then_has() -> None:
    kinds: list[dict[str, Any]] = [{}, {"latent_every": 4}, {"memory_budget_gib": 0.001}]
    for settings_ in kinds:
        config = ReplayConfig(capacity=5000, chunk_length=8, compressed=True, **settings_)
        observation = {"image": IMAGE, "x": ArraySpec((5,), np.dtype(np.float64))}
        spec = ReplaySpec(config, observation, ActionSpec(3, True), 3, 9, LatentSpec(16, 4))
        buffer = EpisodeReplayBuffer(spec, generator=np.random.default_rng(0))
        assert buffer.nbytes() == buffer.plan.nbytes
        store = buffer._store
        assert isinstance(store, CompressedStore)
        latents = buffer.plan.part_bytes["latents"]
        assert buffer.plan.arena_bytes == store.nbytes() + latents


def test_with_room_for_all_the_batches_are_those_of_the_buffer_that_is_not_compressed() -> None:
    plain, coded = (make_buffer(num_envs=3, capacity=90, compressed=kind) for kind in (False, True))
    for buffer in (plain, coded):
        fill(buffer, num_envs=3, steps=100)
    for _ in range(20):
        a, b = plain.sample(5), coded.sample(5)
        assert all(torch.equal(a.observation[key], b.observation[key]) for key in a.observation)
        assert torch.equal(a.reward, b.reward) and torch.equal(a.is_last, b.is_last)
        assert a.positions.start.tolist() == b.positions.start.tolist()
    assert plain.content_hash() == coded.content_hash()


def test_a_flipped_bit_in_memory_is_found_and_the_chunk_named() -> None:
    buffer = frames_buffer()
    add_frames(buffer, np.zeros((40, 1, *IMAGE.shape), np.uint8))
    store = buffer._store
    assert isinstance(store, CompressedStore)
    chunk = int(np.flatnonzero(store._pages._nbytes)[0])
    store._data[store._pages._pages(chunk)[0], 20] ^= 1
    with pytest.raises(UserError, match=f"Chunk {chunk} of the replay is corrupt in memory"):
        for _ in range(50):
            buffer.sample(16)


def test_a_damaged_code_on_disk_is_refused_and_the_file_named(tmp_path: Path) -> None:
    buffer = frames_buffer()
    add_frames(buffer, noise(40) // 128)
    saves = Saves(tmp_path)
    saved = saves.save(buffer)
    name = sorted(saved.shared)[0]
    tensors = load_file(saves.shared / name)
    good = tensors["coded"].clone()
    for damage in ("short", "flipped", "huge", "float"):
        code = good.clone()
        if damage == "short":
            code = code[:-9].clone()
        elif damage == "flipped":
            code[len(code) // 2] ^= 1
        elif damage == "huge":
            # The frame header declares 2**60 bytes.
            code[:14] = torch.tensor([0x28, 0xB5, 0x2F, 0xFD, 0xE0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0])
        else:
            code = code.float()
        save_file(tensors | {"coded": code}, saves.shared / name)
        with pytest.raises(UserError, match=f"{name} is damaged, or was not written by Reverie"):
            saves.load(frames_buffer())
    save_file(tensors | {"coded": good}, saves.shared / name)
    assert saves.load(frames_buffer()).content_hash() == buffer.content_hash()


def test_saved_records_that_take_more_than_the_budget_are_refused_with_the_repair(tmp_path: Path) -> None:
    buffer = frames_buffer(memory_budget_gib=0.01)
    add_frames(buffer, noise(900))
    saves = Saves(tmp_path)
    saves.save(buffer)
    with pytest.raises(UserError, match=r"the saved records do not fit into buffer.memory_budget_gib"):
        saves.load(frames_buffer(memory_budget_gib=0.0005))


def test_a_resumed_buffer_evicts_at_the_same_record_as_one_that_never_stopped(tmp_path: Path) -> None:
    # The noise has half of each byte, so that bytes are the limit.
    budget, images = 250_000 / GIB, noise(540) // 16 * 16
    unbroken = frames_buffer(memory_budget_gib=budget)
    saves, resumed = Saves(tmp_path), frames_buffer(memory_budget_gib=budget)
    for step in range(0, 540, 60):
        for buffer in (unbroken, resumed):
            add_frames(buffer, images[step : step + 60], every=17)
        assert resumed.content_hash() == unbroken.content_hash()
        saves.save(resumed)
        resumed = saves.load(frames_buffer(memory_budget_gib=budget))
    assert unbroken._index.has_been_short


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("cross_episodes", [True, False])
def test_windows_begin_at_kept_latents_alone_and_replay_every_record_equally_often(
    every: int, cross_episodes: bool
) -> None:
    buffer = make_buffer(
        num_envs=1, window_length=9, capacity=400, latent_every=every, cross_episodes=cross_episodes
    )
    # This is a single episode.
    fill(buffer, num_envs=1, steps=400, episode_length=10**6)
    batch = buffer.sample(20_000)
    start = batch.positions.start
    assert set(start % every) == {0}
    assert batch.context is not None
    assert torch.equal(batch.context.deter[:, 0], torch.from_numpy(start % 64).to(batch.context.deter.dtype))
    replayed = np.bincount((start[:, None] + np.arange(1, 9)).ravel(), minlength=400)
    inner = replayed[20:380] / replayed[20:380].mean()
    # 20,000 windows of 8 records over 400 records: 400 expected per record, with a deviation of about 20.
    assert abs(inner - 1).max() < 6 / np.sqrt(400) * np.sqrt(every) + 0.05


def test_compressed_replay_in_files_of_a_folder_leaves_nothing_there(tmp_path: Path) -> None:
    buffer = make_buffer(compressed=True, storage=ReplayStorage.mmap, directory=tmp_path)
    fill(buffer, num_envs=1, steps=60)
    assert list(tmp_path.iterdir()) == []
    assert len(buffer.sample(4).reward) == 4


def test_a_stream_without_records_has_no_episodes() -> None:
    buffer = make_buffer(compressed=True, num_envs=2)
    assert list(buffer.episodes()) == []
    observation = {"image": np.zeros((3, 2, 2, 3), np.uint8), "speed": np.zeros((3, 3))}
    rewards = np.arange(3, dtype=np.float32)
    buffer.add_episode(1, EpisodeRecords(observation, np.zeros((3, 4), np.float32), rewards, False))
    assert [found.reward.tolist() for found in buffer.episodes()] == [[0, 1, 2]]


def test_an_episode_that_may_not_fit_is_refused_before_anything_changes() -> None:
    buffer = frames_buffer(memory_budget_gib=400_000 / GIB)
    length = buffer.plan.guaranteed + 1
    observation = {"image": noise(length)[:, 0], "speed": np.zeros((length, 3), np.float32)}
    records = EpisodeRecords(
        observation, np.zeros((length, 2), np.float32), np.zeros(length, np.float32), False
    )
    with pytest.raises(UserError, match=r"buffer\.memory_budget_gib=\S+ fits only .* Raise it\."):
        buffer.add_episode(0, records)
    assert buffer.total_steps == 0
    shorter = {key: values[: length - 1] for key, values in observation.items()}
    for _ in range(3):
        buffer.add_episode(0, EpisodeRecords(shorter, records.action[1:], records.reward[1:], False))
    assert buffer.total_steps == length - 1


def test_the_world_of_a_gpu_and_chunks_that_latents_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match=r"buffer\.compressed=true needs buffer.storage=ram or mmap"):
        ReplayConfig(compressed=True, storage=ReplayStorage.cuda)
    with pytest.raises(UserError, match=r"every=5 does not divide buffer\.chunk_length=48\. Set \S+every=4,"):
        ReplayConfig(latent_every=5)
    with pytest.raises(UserError, match=r"not divide training\.sequence_length=64.* Set \S+every=8,"):
        make_buffer(window_length=65, capacity=500, chunk_length=48, latent_every=12)
    advance(make_buffer(latent_every=1), ToyWorld(1), 1, np.random.default_rng(0))
