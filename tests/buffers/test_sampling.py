"""Sampled windows, their frequencies, and the limits of write-back."""

import math

import numpy as np
import pytest
import torch

from reverie.buffers import EpisodeReplayBuffer, SampledPositions, SequenceBatch, StoredLatent

from .reference import LATENT, ToyWorld, advance, fill, held_values, make_buffer, rows_of


@pytest.mark.parametrize("cross_episodes", [True, False])
def test_every_start_is_equally_likely(cross_episodes: bool) -> None:
    buffer = make_buffer(num_envs=3, capacity=150, cross_episodes=cross_episodes, chunk_length=8)
    fill(buffer, num_envs=3, steps=400, episode_length=20)
    lengths = buffer._index.window_counts
    # With equal lengths, sampling uniformly per environment would pass too.
    assert lengths.max() > lengths.min() > 0
    draws, counts = 200 * buffer.num_windows, {}
    for _ in range(draws // 100):
        positions = buffer.sample(100).positions
        for start in zip(positions.env.tolist(), positions.start.tolist(), strict=True):
            counts[start] = counts.get(start, 0) + 1
    assert len(counts) == buffer.num_windows
    observed, expected = np.array(list(counts.values())), draws // 100 * 100 / buffer.num_windows
    chi_square = ((observed - expected) ** 2 / expected).sum()
    freedom = buffer.num_windows - 1
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("cross_episodes", [True, False])
def test_the_newest_quarter_of_each_stream_is_drawn_more_often_by_its_share(cross_episodes: bool) -> None:
    settings = {"cross_episodes": cross_episodes, "chunk_length": 8, "newest_share": 0.6}
    buffer = make_buffer(num_envs=3, capacity=150, **settings)
    fill(buffer, num_envs=3, steps=400, episode_length=20)
    held = buffer._index.windows(np.arange(buffer.num_windows))
    counts = {}
    for _ in range(2 * buffer.num_windows):
        drawn = buffer.sample(100).positions
        for start in zip(drawn.env.tolist(), drawn.start.tolist(), strict=True):
            counts[start] = counts.get(start, 0) + 1
    newest = []
    for env in range(3):
        starts = held.start[held.env == env].tolist()
        newest += [(env, start) for start in starts[-math.ceil(len(starts) / 4) :]]
    draws, windows = 200 * buffer.num_windows, set(zip(held.env.tolist(), held.start.tolist(), strict=True))
    expected = {
        start: draws * 0.4 / len(windows) + draws * 0.6 / len(newest) * (start in newest) for start in windows
    }
    chi_square = sum((counts.get(start, 0) - mean) ** 2 / mean for start, mean in expected.items())
    assert counts.keys() <= windows
    freedom = len(windows) - 1
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)


def test_rewards_and_actions_keep_the_time_convention_over_an_episode_border() -> None:
    buffer, world = make_buffer(window_length=5), ToyWorld(1)
    for outcome in ("go on", "go on", "terminate", "go on", "go on"):
        buffer.add(*world.advance([outcome]))
    batch = buffer.sample(1)
    # Choices 0, 3, (2), 1, 0: the third was never executed, and a first observation has no reward.
    assert batch.action[0].argmax(-1).tolist() == [0, 3, 0, 1, 0]
    assert batch.action[0].sum(-1).tolist() == [1, 1, 0, 1, 1]
    assert batch.reward[0].tolist() == [0, 1, 4, 0, 2]
    assert batch.is_first[0].tolist() == [True, False, False, True, False]
    assert batch.is_last[0].tolist() == [False, False, True, False, False]
    assert batch.is_terminal[0].tolist() == [False, False, True, False, False]


def test_an_abandoned_episode_ends_in_the_window_without_being_terminal() -> None:
    buffer, world = make_buffer(window_length=4), ToyWorld(1)
    for outcome in ("go on", "go on", "abandon", "go on"):
        buffer.add(*world.advance([outcome]))
    batch = buffer.sample(1)
    assert batch.is_first[0].tolist() == [True, False, True, False]
    assert batch.is_last[0].tolist() == [False, True, False, False]
    assert not batch.is_terminal.any()
    assert buffer._index.num_episodes == 2


def test_windows_inside_episodes_never_train_over_a_border() -> None:
    buffer = make_buffer(num_envs=2, capacity=200, cross_episodes=False)
    fill(buffer, num_envs=2, steps=300, episode_length=10)
    batch = buffer.sample(500)
    assert not batch.is_first[:, 2:].any()
    assert not batch.is_last[:, 1:-1].any()
    for flags, column in ((batch.is_first, 0), (batch.is_first, 1), (batch.is_last, 0), (batch.is_last, -1)):
        assert flags[:, column].any()
    assert batch.is_first[batch.is_last[:, 0], 1].all()


def test_every_record_but_the_very_first_is_trained_inside_its_episode() -> None:
    buffer, world = make_buffer(capacity=200, cross_episodes=False), ToyWorld(1)
    for step in range(60):
        buffer.add(*world.advance(["truncate" if step % 5 == 4 else "go on"]))
    trained = buffer.sample(2_000).positions.start[:, None] + np.arange(1, 4)
    assert set(trained.flatten().tolist()) == set(range(1, 60))


def test_the_same_generator_draws_the_same_windows() -> None:
    first, second, other = (make_buffer(seed=seed) for seed in (3, 3, 4))
    for buffer in (first, second, other):
        fill(buffer, num_envs=1, steps=60)
    draws = [buffer.sample(32).positions.start.tolist() for buffer in (first, second, other)]
    assert draws[0] == draws[1] != draws[2]


def test_sampling_before_the_first_window_says_what_is_missing() -> None:
    buffer = make_buffer(window_length=4)
    fill(buffer, num_envs=1, steps=3)
    assert not buffer.can_sample and buffer.num_windows == 0
    with pytest.raises(ValueError, match="no window of 4 steps in 3 stored steps"):
        buffer.sample(1)


def test_one_endless_episode_loses_only_its_oldest_records() -> None:
    buffer, world = make_buffer(num_envs=2, capacity=17), ToyWorld(2)
    for step in range(60):
        buffer.add(*world.advance(["go on", "go on"]))
        assert buffer.total_steps == min(2 * (step + 1), 16 if step < 8 else 17)
    assert buffer._index.num_episodes == 2
    assert buffer.can_sample
    heads = buffer._index.records.head
    assert abs(heads[0] - heads[1]) <= 2


def test_an_endless_episode_leaves_the_other_streams_their_share() -> None:
    buffer, world = make_buffer(num_envs=4, capacity=200), ToyWorld(4)
    for step in range(600):
        outcome = "truncate" if step % 10 == 9 else "go on"
        buffer.add(*world.advance(["go on", *[outcome] * 3]))
    shares = np.bincount(buffer.sample(2_000).positions.env, minlength=4) / 2_000
    assert shares == pytest.approx(0.25, abs=0.08)


def test_a_stream_that_grows_half_as_fast_keeps_its_share_of_the_replay() -> None:
    index, lengths = make_buffer(num_envs=2, capacity=200)._index, (5, 8)
    for step in range(2_000):
        # The second stream has a record only in every second step.
        envs = np.arange(2 - step % 2)
        place = index.records.tail[envs] % np.array(lengths)[envs]
        index.add(place == 0, place == np.array(lengths)[envs] - 1, envs)
    assert index.total_steps > 200 - max(lengths)
    assert index.records.lengths.min() > 100 - 2 * max(lengths)


def fresh_latents(batch: int, time: int, value: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return latents filled with `value`."""
    deter = torch.full((batch, time, LATENT.deter_size), value)
    return deter, torch.full((batch, time, LATENT.num_latents), int(value))


def test_write_back_reaches_columns_one_to_the_end_and_nothing_else() -> None:
    buffer = make_buffer(window_length=4, capacity=20)
    fill(buffer, num_envs=1, steps=12, episode_length=1000)
    before = held_values(buffer, "deter")[:, 0]
    buffer.write_back(positions(5), *fresh_latents(1, 3, 99.0))
    changed = held_values(buffer, "deter")[:, 0] != before
    assert changed.nonzero().flatten().tolist() == [6, 7, 8]
    assert held_values(buffer, "stoch")[6:9].unique().tolist() == [99]


def test_write_back_of_an_evicted_window_changes_nothing() -> None:
    buffer = make_buffer(window_length=4, capacity=20)
    world = fill(buffer, num_envs=1, steps=12, episode_length=1000)
    advance(buffer, world, 30, np.random.default_rng(0), episode_length=1000)
    before = held_values(buffer, "deter").clone()
    buffer.write_back(positions(5), *fresh_latents(1, 3, 99.0))
    assert torch.equal(held_values(buffer, "deter"), before)
    # This includes free chunks.
    assert (rows_of(buffer)["stoch"] != 99).all()


def test_the_later_of_overlapping_windows_stands() -> None:
    buffer = make_buffer(window_length=4, capacity=20)
    fill(buffer, num_envs=1, steps=12, episode_length=1000)
    deter, stoch = fresh_latents(3, 3, 0.0)
    deter += torch.tensor([100.0, 200.0, 300.0])[:, None, None]
    buffer.write_back(positions(2, 4, 3), deter, stoch)
    # The windows write records 3-5, 5-7 and 4-6.
    assert held_values(buffer, "deter")[3:8, 0].tolist() == [100, 300, 300, 300, 200]


def test_no_graph_ever_reaches_the_arena() -> None:
    buffer = make_buffer(window_length=4)
    fill(buffer, num_envs=1, steps=8)
    deter, stoch = fresh_latents(1, 3, 1.0)
    buffer.write_back(positions(2), deter.requires_grad_() * 2, stoch)
    arrival, action, latent = ToyWorld(1).advance(["go on"])
    graph = latent.deter.clone().requires_grad_() * 2
    buffer.add(arrival, action, StoredLatent(deter=graph, stoch=latent.stoch))
    assert not any(field.requires_grad for field in rows_of(buffer).values())


def test_latents_of_the_wrong_length_are_refused() -> None:
    buffer = make_buffer(window_length=4)
    fill(buffer, num_envs=1, steps=8)
    with pytest.raises(ValueError, match=r"latents have shapes .*4, 2.*, expected .*3, 2"):
        buffer.write_back(positions(1), *fresh_latents(1, 4, 1.0))


@pytest.mark.parametrize("store_latents", [True, False])
def test_latents_are_given_exactly_when_they_are_stored(store_latents: bool) -> None:
    buffer: EpisodeReplayBuffer = make_buffer(store_latents=store_latents)
    arrival, action, latent = ToyWorld(1).advance(["go on"])
    with pytest.raises(ValueError, match="store_latents"):
        buffer.add(arrival, action, None if store_latents else latent)
    assert buffer.total_steps == 0
    for _ in range(4):
        buffer.add(arrival, action, latent if store_latents else None)
    assert (buffer.sample(1).context is not None) == store_latents == buffer.stores_latents


def test_a_batch_moves_with_all_its_tensors() -> None:
    buffer = make_buffer()
    fill(buffer, num_envs=1, steps=20)
    batch = buffer.sample(2)
    moved = batch.to("meta")
    assert moved.context is not None
    tensors = [*moved.observation.values(), moved.action, moved.reward, moved.is_first, moved.is_last]
    tensors += [moved.is_terminal, moved.context.deter, moved.context.stoch]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.positions is batch.positions


def positions(*start: int) -> SampledPositions:
    """Return positions in environment 0."""
    return SampledPositions(env=np.zeros(len(start), np.int64), start=np.array(start))


def tensors_of(batch: SequenceBatch) -> dict[str, torch.Tensor]:
    assert batch.context is not None
    named = {"image": batch.observation["image"], "deter": batch.context.deter, "stoch": batch.context.stoch}
    names = ("action", "reward", "is_first", "is_last", "is_terminal")
    return named | {name: getattr(batch, name) for name in names}


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_batch_written_over_an_earlier_one_is_the_batch_that_fresh_memory_gets(num_envs: int) -> None:
    fresh, reused = make_buffer(num_envs=num_envs, seed=3), make_buffer(num_envs=num_envs, seed=3)
    for buffer in (fresh, reused):
        fill(buffer, num_envs=num_envs, steps=60)
    held = reused.sample(16)
    places = {name: tensor.data_ptr() for name, tensor in tensors_of(held).items()}
    fresh.sample(16)
    for _ in range(5):
        expected, found = fresh.sample(16), reused.sample(16, out=held)
        assert {name: tensor.data_ptr() for name, tensor in tensors_of(found).items()} == places
        assert found.positions.start.tolist() == expected.positions.start.tolist()
        for name, tensor in tensors_of(expected).items():
            assert torch.equal(tensors_of(found)[name], tensor), name


def test_memory_of_another_size_is_not_written_over() -> None:
    buffer = make_buffer()
    fill(buffer, num_envs=1, steps=60)
    with pytest.raises(ValueError, match="out has 4 windows, but batch_size=8"):
        buffer.sample(8, out=buffer.sample(4))
