"""The buffer owns its declared memory from construction on, but none of the data that passes through it."""

import gc
import weakref

import numpy as np
import pytest
from heapwatch.counters.process import process_rss_mb

from reverie.buffers import EpisodeReplayBuffer

from ..runs.fresh import in_a_fresh_process
from .memory import in_use_bytes
from .reference import ToyWorld, advance, fill, make_buffer


def large_buffer(cross_episodes: bool) -> EpisodeReplayBuffer:
    """Return a buffer of several MB, so that a few objects are negligible."""
    return make_buffer(num_envs=4, capacity=100_000, chunk_length=256, cross_episodes=cross_episodes)


@pytest.mark.parametrize("cross_episodes", [True, False])
def test_nbytes_is_what_is_really_held_within_one_percent(cross_episodes: bool) -> None:
    # One-time allocations of torch and NumPy do not belong to the buffer.
    large_buffer(cross_episodes)
    before = in_use_bytes()
    buffer = large_buffer(cross_episodes)
    held = in_use_bytes() - before
    assert held > 5_000_000
    assert abs(buffer.nbytes() - held) < 0.01 * held


def committed_bytes() -> tuple[float, int]:
    """Return how much a buffer increases resident memory, and its declared size."""
    before = process_rss_mb()
    buffer = make_buffer(num_envs=2, capacity=5_000_000, cross_episodes=False)
    return 1e6 * (process_rss_mb() - before), buffer.nbytes()


def test_all_memory_is_committed_at_construction() -> None:
    # In this process, memory freed by earlier tests would be reused.
    rise, nbytes = in_a_fresh_process(committed_bytes)
    assert rise > 0.9 * nbytes


@pytest.mark.parametrize("cross_episodes", [True, False])
def test_nothing_is_allocated_in_steady_state(cross_episodes: bool) -> None:
    buffer = make_buffer(num_envs=2, capacity=200, cross_episodes=cross_episodes)
    chance = np.random.default_rng(0)
    world = fill(buffer, num_envs=2, steps=300)
    owned, before = buffer.nbytes(), in_use_bytes()
    for _ in range(4):
        advance(buffer, world, 400, chance)
        sample_and_write_back(buffer)
    assert buffer.nbytes() == owned
    # A small object for every one of 1,600 steps would need 50,000 bytes.
    assert in_use_bytes() - before < 20_000


def sample_and_write_back(buffer: EpisodeReplayBuffer) -> None:
    """Sample a batch, and store its context as the latents of columns 1 to T."""
    batch = buffer.sample(8)
    assert batch.context is not None
    time = batch.action.shape[1] - 1
    deter, stoch = batch.context.deter[:, None], batch.context.stoch[:, None]
    buffer.write_back(batch.positions, deter.repeat(1, time, 1), stoch.repeat(1, time, 1))


def test_the_buffer_keeps_no_reference_to_inputs_or_outputs() -> None:
    buffer, world = make_buffer(), ToyWorld(1)
    references = [ref for _ in range(10) for ref in given(buffer, world)] + returned(buffer)
    gc.collect()
    assert len(references) == 10 * 9 + 6
    assert [ref for ref in references if ref() is not None] == []


def given(buffer: EpisodeReplayBuffer, world: ToyWorld) -> list[weakref.ref]:
    """Add a record, and return weak references to its arrays."""
    arrival, action, latent = world.advance(["go on"])
    # Otherwise the toy world would keep the action.
    world.previous = [action[0].copy()]
    buffer.add(arrival, action, latent)
    flags = (arrival.is_first, arrival.is_last, arrival.is_terminal)
    things = (*arrival.observation.values(), action, arrival.reward, *flags, latent.deter, latent.stoch)
    return [weakref.ref(thing) for thing in things]


def returned(buffer: EpisodeReplayBuffer) -> list[weakref.ref]:
    """Sample, and return weak references to the result."""
    batch = buffer.sample(2)
    assert batch.context is not None
    things = (*batch.observation.values(), batch.action, batch.context.deter)
    return [weakref.ref(thing) for thing in (*things, batch.positions.env, batch.positions.start)]


def test_a_changed_argument_or_batch_never_changes_the_buffer() -> None:
    buffer, world = make_buffer(window_length=2), ToyWorld(1)
    for _ in range(2):
        arrival, action, latent = world.advance(["go on"])
        buffer.add(arrival, action, latent)
        arrival.observation["speed"][:] = action[:] = -1
        latent.deter[:] = -1
    first = buffer.sample(1)
    expected = first.observation["speed"].clone(), first.action.clone()
    first.observation["speed"][:] = -1
    first.action[:] = -1
    again = buffer.sample(1)
    assert (again.observation["speed"] == expected[0]).all() and (again.action == expected[1]).all()
    assert (again.observation["speed"] >= 0).all() and (again.action >= 0).all()


def test_read_only_and_strided_arrays_are_copied_as_they_are() -> None:
    buffer = make_buffer(window_length=2, num_envs=2, store_latents=False)
    world, seen = ToyWorld(2), []
    for _ in range(2):
        arrival, action, _ = world.advance(["go on", "go on"])
        image = np.asfortranarray(arrival.observation["image"])
        image.flags.writeable = False
        arrival.observation["image"] = image
        arrival.reward.flags.writeable = False
        buffer.add(arrival, action)
        seen.append(image)
    batch = buffer.sample(1)
    env = int(batch.positions.env[0])
    np.testing.assert_array_equal(
        batch.observation["image"][0].numpy(), np.stack([image[env] for image in seen])
    )


def test_stats_are_floats_under_the_names_of_the_tags() -> None:
    buffer = make_buffer(capacity=40)
    fill(buffer, num_envs=1, steps=10)
    stats = buffer.stats()
    assert stats == {
        "total_steps": 10.0,
        "num_episodes": float(buffer._index.num_episodes),
        "obs_bytes": float(buffer.plan.part_bytes["observations"]),
        "aux_bytes": float(buffer.nbytes() - buffer.plan.part_bytes["observations"]),
        "fill": 0.25,
    }
    assert all(type(value) is float for value in stats.values())
