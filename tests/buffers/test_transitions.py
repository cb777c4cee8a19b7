"""Transitions are the pairs within episodes, each exactly once, for every kind of storage."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reverie.buffers import EpisodeReplayBuffer, TransitionBatch, TransitionTable

from .reference import OUTCOMES, Record, ReferenceReplay, ToyWorld, make_buffer, rows_of
from .toy_episodes import toy_episode, transition_buffer


@st.composite
def histories(draw: st.DrawFn) -> dict:
    """Draw settings of a buffer, and the outcomes of each step in all environments."""
    num_envs = draw(st.integers(1, 3))
    outcome = st.sampled_from(OUTCOMES[:1] * 5 + OUTCOMES)
    steps = st.lists(st.lists(outcome, min_size=num_envs, max_size=num_envs), min_size=1, max_size=40)
    return {
        "num_envs": num_envs,
        "capacity": draw(st.integers(2 * num_envs, 40)),
        "chunk_length": draw(st.integers(1, 7)),
        "steps": draw(steps),
    }


@given(history=histories())
@settings(max_examples=150, deadline=None)
def test_indices_count_every_pair_inside_an_episode_once_and_in_order(history: dict) -> None:
    num_envs, capacity = history["num_envs"], history["capacity"]
    buffer = make_buffer(
        num_envs=num_envs,
        capacity=capacity,
        chunk_length=history["chunk_length"],
        window_length=2,
        cross_episodes=False,
    )
    reference, world = ReferenceReplay(num_envs, capacity, 2, False), ToyWorld(num_envs)
    for outcomes in history["steps"]:
        arrived = world.advance(outcomes)
        buffer.add(*arrived)
        reference.add(*arrived)
    pairs = [pair for stream in reference.episodes for episode in stream for pair in pairwise(episode)]
    table = buffer.transition_table()
    assert bytes_of(table) <= TransitionTable.nbytes_of(buffer.plan, capacity)
    for source in (buffer, table):
        assert_gives(source, pairs)


def bytes_of(table: TransitionTable) -> int:
    return sum(values.nbytes for values in table.fields.values()) + table.starts.nbytes


def assert_gives(source: EpisodeReplayBuffer | TransitionTable, pairs: list[tuple[Record, Record]]) -> None:
    """Check all transitions of a buffer or a table against pairs of records."""
    assert source.num_transitions == len(pairs)
    batch = source.transitions(np.arange(len(pairs)))
    for row, (before, after) in enumerate(pairs):
        for key in before.observation:
            np.testing.assert_array_equal(batch.observation[key][row].numpy(), before.observation[key])
            np.testing.assert_array_equal(batch.next_observation[key][row].numpy(), after.observation[key])
        assert batch.action[row].tolist() == before.action.tolist()
    assert batch.reward.tolist() == [after.reward for _, after in pairs]
    assert batch.is_terminal.tolist() == [after.is_terminal for _, after in pairs]


def filled(capacity: int = 40) -> EpisodeReplayBuffer:
    """Return a buffer that has evicted some episodes. Terminal and truncated episodes alternate."""
    buffer = transition_buffer(capacity=capacity)
    for number in range(12):
        buffer.add_episode(0, toy_episode(3 + number, number % 2 == 0, 100 * number))
    return buffer


def all_of(source: EpisodeReplayBuffer | TransitionTable) -> TransitionBatch:
    return source.transitions(np.arange(source.num_transitions))


def tensors_of(batch: TransitionBatch) -> list[Tensor]:
    observations = [*batch.observation.values(), *batch.next_observation.values()]
    return [*observations, batch.action, batch.reward, batch.is_terminal]


def assert_same(first: TransitionBatch, second: TransitionBatch) -> None:
    assert list(first.observation) == list(second.observation) == list(first.next_observation)
    for one, other in zip(tensors_of(first), tensors_of(second), strict=True):
        assert one.dtype is other.dtype and torch.equal(one, other)


def test_a_terminal_end_stops_the_bootstrap_and_a_truncated_one_does_not() -> None:
    buffer = transition_buffer()
    buffer.add_episode(0, toy_episode(3, is_terminal=True, identity=10))
    # A transition needs an action.
    buffer.add_episode(0, toy_episode(1, is_terminal=True, identity=50))
    buffer.add_episode(0, toy_episode(3, is_terminal=False, identity=20))
    batch = all_of(buffer)
    assert batch.observation["speed"][:, 0].tolist() == [10, 11, 20, 21]
    assert batch.next_observation["speed"][:, 0].tolist() == [11, 12, 21, 22]
    assert batch.reward.tolist() == [11, 12, 21, 22]
    assert batch.action.argmax(-1).tolist() == [2, 3, 0, 1]
    assert batch.is_terminal.tolist() == [False, True, False, False]


def test_indices_are_taken_in_any_order_and_as_often_as_asked() -> None:
    buffer = filled()
    indices = np.array([3, 0, 3, buffer.num_transitions - 1])
    everything = all_of(buffer).observation["speed"]
    for source in (buffer, buffer.transition_table()):
        batch = source.transitions(indices)
        assert torch.equal(batch.observation["speed"], everything[torch.from_numpy(indices)])
        assert len(source.transitions(indices[:0]).reward) == 0


def test_uniform_indices_draw_every_transition_equally_often() -> None:
    buffer = filled(capacity=100)
    draws = 200 * buffer.num_transitions
    indices = np.random.default_rng(0).integers(buffer.num_transitions, size=draws)
    found = buffer.transitions(indices).observation["speed"][:, 0]
    _, counts = torch.unique(found, return_counts=True)
    assert len(counts) == buffer.num_transitions
    chi_square = ((counts - 200) ** 2 / 200).sum().item()
    freedom = buffer.num_transitions - 1
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)


def test_a_batch_given_as_out_is_written_over() -> None:
    buffer = filled()
    indices, others = np.array([0, 5, 2]), np.array([9, 1, 0])
    for source in (buffer, buffer.transition_table()):
        expected, out = source.transitions(indices), source.transitions(others)
        places = [tensor.data_ptr() for tensor in tensors_of(out)]
        returned = source.transitions(indices, out)
        assert [tensor.data_ptr() for tensor in tensors_of(returned)] == places
        assert_same(out, expected)
        assert_same(returned, expected)


def test_a_batch_shares_no_memory_with_the_arena_or_the_table() -> None:
    buffer = filled()
    table = buffer.transition_table()
    arena = [field.numpy() for field in rows_of(buffer).values()]
    fields = [*table.fields.values(), table.starts]
    assert not any(np.shares_memory(field, slab) for field in fields for slab in arena)
    for source in (buffer, table):
        for tensor in tensors_of(all_of(source)):
            assert tensor.is_contiguous()
            assert not any(np.shares_memory(tensor.numpy(), owned) for owned in (*arena, *fields))


def test_a_table_keeps_what_was_held_when_it_was_made() -> None:
    buffer = filled()
    table, before = buffer.transition_table(), all_of(buffer)
    for number in range(5):
        buffer.add_episode(0, toy_episode(12, identity=5000 + number))
    assert_same(all_of(table), before)
    assert buffer.transitions(np.array([0])).observation["speed"][0, 0] >= 5000


def test_a_table_of_read_only_arrays_works_as_any_other() -> None:
    # Data from shared memory is read-only. torch would warn about such arrays, and warnings fail the test.
    buffer = filled()
    table = buffer.transition_table()
    arrived = replace(table, fields={name: values.copy() for name, values in table.fields.items()})
    for values in (*arrived.fields.values(), arrived.starts):
        values.flags.writeable = False
    assert_same(all_of(arrived), all_of(buffer))
    out = arrived.transitions(np.array([1, 2]))
    assert_same(arrived.transitions(np.array([4, 0]), out), buffer.transitions(np.array([4, 0])))


def test_a_table_says_its_bytes_and_never_passes_the_bound() -> None:
    buffer = transition_buffer(capacity=40)
    buffer.add_episode(0, toy_episode(40))
    table = buffer.transition_table()
    # Image, speed, action, reward and is_terminal.
    record = 12 + 3 * 8 + 4 * 4 + 4 + 1
    assert bytes_of(table) == 40 * record + 39 * 8
    assert TransitionTable.nbytes_of(buffer.plan, 40) == 40 * (record + 8)
    assert set(map(type, (*table.fields.values(), table.starts))) == {np.ndarray}
    assert table.num_transitions == 39


def test_an_empty_buffer_has_no_transition_and_an_empty_table() -> None:
    buffer = transition_buffer()
    table = buffer.transition_table()
    assert buffer.num_transitions == table.num_transitions == bytes_of(table) == 0
    for source in (buffer, table):
        with pytest.raises(ValueError, match=r"index 0 is not in \[0, 0\)"):
            source.transitions(np.array([0]))


@pytest.mark.parametrize("index", [-1, 10**6])
def test_an_index_out_of_range_is_refused(index: int) -> None:
    buffer = filled()
    for source in (buffer, buffer.transition_table()):
        with pytest.raises(ValueError, match=rf"index {index} is not in \[0, {buffer.num_transitions}\)"):
            source.transitions(np.array([0, index]))
        last = source.num_transitions
        with pytest.raises(ValueError, match=f"index {last} is not"):
            source.transitions(np.array([last]))


def test_an_out_of_another_size_is_refused() -> None:
    buffer = filled()
    for source in (buffer, buffer.transition_table()):
        out = source.transitions(np.array([0, 1]))
        with pytest.raises(ValueError, match="out has 2 transitions for 3 indices"):
            source.transitions(np.array([0, 1, 2]), out)


@pytest.mark.parametrize("settings", [{"window_length": 3}, {"cross_episodes": True}])
def test_a_buffer_of_other_windows_has_no_transitions(settings: dict) -> None:
    buffer = transition_buffer(**settings)
    buffer.add_episode(0, toy_episode(9))
    for ask in (
        lambda: buffer.num_transitions,
        lambda: buffer.transitions(np.array([0])),
        buffer.transition_table,
    ):
        with pytest.raises(ValueError, match="transitions need window_length=2"):
            ask()


def test_a_batch_moves_to_a_device_whole() -> None:
    batch = all_of(filled())
    assert_same(batch.to("cpu"), batch)
    moved = batch.to("meta")
    assert [tensor.device.type for tensor in tensors_of(moved)] == ["meta"] * 7
