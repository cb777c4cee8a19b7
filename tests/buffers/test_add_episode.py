"""Adding a whole episode leaves the buffer in the same state as adding its records one by one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.buffers import EpisodeRecords, ReplayStorage

from .memory import in_use_bytes
from .reference import OUTCOMES, ToyWorld, held_values, make_buffer
from .saved import Saves, full_copy, same_content
from .toy_episodes import ListOfEpisodes, add_one_by_one, assert_holds, toy_episode, transition_buffer

EPISODES = st.lists(st.tuples(st.integers(1, 14), st.booleans()), min_size=1, max_size=14)


@given(
    episodes=EPISODES,
    capacity=st.integers(14, 40),
    chunk_length=st.integers(1, 9),
    window_length=st.integers(2, 4),
    cross_episodes=st.booleans(),
    alone=st.lists(st.booleans(), min_size=14, max_size=14),
)
@settings(max_examples=80, deadline=None)
def test_an_episode_at_once_equals_its_records_one_by_one(
    episodes: list[tuple[int, bool]],
    capacity: int,
    chunk_length: int,
    window_length: int,
    cross_episodes: bool,
    alone: list[bool],
) -> None:
    kind = {"capacity": capacity, "chunk_length": chunk_length, "window_length": window_length}
    whole, single = (transition_buffer(**kind, cross_episodes=cross_episodes) for _ in range(2))
    expected, identity = ListOfEpisodes(1, capacity), 0
    for (length, is_terminal), one_by_one in zip(episodes, alone, strict=False):
        episode = toy_episode(length, is_terminal, identity)
        # Both ways may be mixed in one buffer.
        if one_by_one:
            add_one_by_one(whole, episode)
        else:
            whole.add_episode(0, episode)
        add_one_by_one(single, episode)
        expected.add(0, episode)
        identity += length
        assert same_content(full_copy(whole), full_copy(single))
        assert whole.content_hash() == single.content_hash()
        assert whole._index.records._num_free == single._index.records._num_free
    assert_holds(whole, expected.held)


@given(
    episodes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 14)), min_size=1, max_size=25),
    capacity=st.integers(14, 40),
    chunk_length=st.integers(1, 9),
    storage=st.sampled_from([ReplayStorage.ram, ReplayStorage.mmap]),
)
@settings(max_examples=100, deadline=None)
def test_streams_filled_unequally_hold_what_plain_lists_hold(
    tmp_path_factory: pytest.TempPathFactory,
    episodes: list[tuple[int, int]],
    capacity: int,
    chunk_length: int,
    storage: ReplayStorage,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    buffer = transition_buffer(
        num_envs=3, capacity=capacity, chunk_length=chunk_length, storage=storage, directory=folder
    )
    expected, identity = ListOfEpisodes(3, capacity), 0
    for env, length in episodes:
        episode = toy_episode(length, identity % 2 == 0, identity)
        buffer.add_episode(env, episode)
        expected.add(env, episode)
        identity += length
        assert buffer.total_steps == sum(len(held.reward) for held in expected.held) <= capacity
        assert buffer.num_windows == sum(len(held.reward) - 1 for held in expected.held)
    assert_holds(buffer, expected.held)


def test_an_episode_as_long_as_the_capacity_leaves_nothing_else() -> None:
    buffer = transition_buffer(capacity=40)
    for length in (3, 30, 40):
        buffer.add_episode(0, toy_episode(length, identity=length))
    assert_holds(buffer, [toy_episode(40, identity=40)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: toy_episode(41), "an episode has 41 records, but capacity=40"),
        (lambda e: toy_episode(0), "an episode must have at least 1 record"),
        (
            lambda e: replace(e, action=e.action[:, :1]),
            r"action of an episode is \(\(5, 1\), .*not \(\(5, 4\)",
        ),
        (lambda e: replace(e, observation=e.observation | {"more": e.reward}), "observation.more .*not None"),
        (lambda e: replace(e, observation={"image": e.observation["image"]}), "observation.speed .*is None"),
        (
            lambda e: replace(e, observation=e.observation | {"speed": e.observation["speed"].astype("f4")}),
            r"observation.speed .*float32.*not .*float64",
        ),
    ],
)
def test_an_episode_that_does_not_fit_changes_nothing(
    change: Callable[[EpisodeRecords], EpisodeRecords], message: str
) -> None:
    buffer = transition_buffer(capacity=40)
    buffer.add_episode(0, toy_episode(38))
    before = full_copy(buffer)
    with pytest.raises(ValueError, match=message):
        buffer.add_episode(0, change(toy_episode(5)))
    assert same_content(full_copy(buffer), before)


def test_an_open_episode_of_any_stream_refuses_a_whole_one() -> None:
    buffer, world = transition_buffer(num_envs=2, capacity=10), ToyWorld(2)
    arrival, action, _ = world.advance(["terminate", "go on"])
    buffer.add(arrival, action)
    before = full_copy(buffer)
    for env in (0, 1):
        with pytest.raises(ValueError, match=r"episodes of environments \[1\] are open"):
            buffer.add_episode(env, toy_episode(10))
    assert same_content(full_copy(buffer), before)
    arrival, action, _ = world.advance(["truncate", "truncate"])
    buffer.add(arrival, action)
    buffer.add_episode(1, toy_episode(10))
    assert_holds(buffer, [toy_episode(10)])


def test_a_whole_episode_has_zeros_for_latents_until_they_are_written_back(tmp_path: Path) -> None:
    saves, buffer = Saves(tmp_path), make_buffer(window_length=4, capacity=8)
    # Data of an evicted episode must not be reused.
    for number in range(3):
        buffer.add_episode(0, toy_episode(6, identity=number))
        batch = buffer.sample(5)
        assert batch.context is not None
        assert not batch.context.deter.any() and not batch.context.stoch.any()
        deter = torch.ones((5, 3, batch.context.deter.shape[1]))
        buffer.write_back(
            batch.positions, deter, torch.ones((5, 3, batch.context.stoch.shape[1]), dtype=torch.int64)
        )
        saves.save(buffer)
    loaded = saves.load(make_buffer(window_length=4, capacity=8, seed=9))
    assert loaded.content_hash() == buffer.content_hash()


@given(
    outcomes=st.lists(st.lists(st.sampled_from(OUTCOMES), min_size=2, max_size=2), min_size=1, max_size=40),
    capacity=st.integers(8, 60),
)
@settings(max_examples=60, deadline=None)
def test_the_whole_episodes_held_are_given_back(outcomes: list[list[str]], capacity: int) -> None:
    buffer, world = make_buffer(num_envs=2, capacity=capacity), ToyWorld(2)
    for each in outcomes:
        buffer.add(*world.advance(each))
    names = ("is_first", "is_last", "is_terminal", "reward", "action", "observation.speed")
    rows = zip(*(held_values(buffer, name) for name in names), strict=True)
    held = [dict(zip(names, row, strict=True)) for row in rows]
    expected, episode, lengths = [], [], buffer._index.records.lengths.tolist()
    for number, record in enumerate(held):
        # This is the other stream.
        if number == lengths[0]:
            episode = []
        episode = [record] if record["is_first"] else [*episode, record] if episode else []
        if record["is_last"] and episode:
            expected.append(episode)
            episode = []
    found = list(buffer.episodes())
    assert [each.is_terminal for each in found] == [bool(each[-1]["is_terminal"]) for each in expected]
    for each, records in zip(found, expected, strict=True):
        for values, name in ((each.reward, "reward"), (each.action, "action")):
            assert np.array_equal(values, np.stack([record[name].numpy() for record in records]))
        speed = np.stack([record["observation.speed"].numpy() for record in records])
        assert np.array_equal(each.observation["speed"], speed)
        assert each.observation["image"].shape == (len(records), 2, 2, 3)


def test_a_changed_or_read_only_episode_never_changes_the_buffer() -> None:
    buffer, episode = transition_buffer(), toy_episode(6, True)
    arrays = [*episode.observation.values(), episode.action, episode.reward]
    for array in arrays:
        array.flags.writeable = False
    buffer.add_episode(0, episode)
    for array in arrays:
        array.flags.writeable = True
        array[:] = 77
    assert_holds(buffer, [toy_episode(6, True)])


def test_adding_episodes_allocates_nothing_that_stays() -> None:
    buffer, chance = transition_buffer(capacity=400), np.random.default_rng(0)
    for _ in range(60):
        buffer.add_episode(0, toy_episode(int(chance.integers(2, 40))))
    owned, before = buffer.nbytes(), in_use_bytes()
    for _ in range(600):
        buffer.add_episode(0, toy_episode(int(chance.integers(2, 40))))
    assert buffer.nbytes() == owned
    # One small object per episode would be 19,000 bytes or more.
    assert in_use_bytes() - before < 20_000


def test_the_plan_of_a_buffer_for_transitions_is_what_it_owns() -> None:
    buffer = transition_buffer(capacity=1001, chunk_length=48)
    assert buffer.plan.nbytes == buffer.nbytes()
    assert buffer.plan.num_rows == 48 * (21 + 2)
    buffer.add_episode(0, toy_episode(1001))
    assert buffer.plan.nbytes == buffer.nbytes() == sum(buffer.plan.part_bytes.values())


def test_a_buffer_of_whole_episodes_is_saved_and_goes_on_after_evictions(tmp_path: Path) -> None:
    saves, buffer, chance = Saves(tmp_path), transition_buffer(capacity=60), np.random.default_rng(1)
    lengths = chance.integers(1, 20, size=40).tolist()
    for number, length in enumerate(lengths[:30]):
        buffer.add_episode(0, toy_episode(length, number % 3 == 0, 100 * number))
        if number % 4 == 0:
            # Most segments are evicted between two saves.
            saves.save(buffer)
    saves.save(buffer)
    loaded = saves.load(transition_buffer(capacity=60, seed=9))
    assert loaded.content_hash() == buffer.content_hash()
    loaded = saves.load(transition_buffer(capacity=60, chunk_length=7, seed=9))
    for length in lengths[30:]:
        for each in (buffer, loaded):
            each.add_episode(0, toy_episode(length))
        assert same_content(full_copy(loaded), full_copy(buffer))
    indices = np.arange(buffer.num_transitions)
    assert loaded.transitions(indices).reward.tolist() == buffer.transitions(indices).reward.tolist()
