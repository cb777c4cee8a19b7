"""Queues that share a pool of chunks."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.buffers.chunked_queues import ChunkedQueues, locate


@given(
    num_queues=st.integers(1, 4),
    capacity=st.integers(1, 25),
    chunk_length=st.integers(1, 8),
    actions=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=150),
)
@settings(max_examples=200, deadline=None)
def test_queues_never_mix_their_rows_nor_run_out_of_chunks(
    num_queues: int, capacity: int, chunk_length: int, actions: list[tuple[int, int]]
) -> None:
    queues = ChunkedQueues(num_queues, capacity, chunk_length)
    rows, expected = np.zeros(queues.num_rows, np.int64), [deque() for _ in range(num_queues)]
    for token, (queue, drops) in enumerate(actions):
        queue %= num_queues
        if sum(map(len, expected)) == capacity or drops > 4:
            drops = min(drops, len(expected[queue]))
            queues.drop(queue, drops)
            for _ in range(drops):
                expected[queue].popleft()
        if sum(map(len, expected)) < capacity:
            rows[queues.append(np.array([queue]))] = token
            expected[queue].append(token)
        for number, tokens in enumerate(expected):
            head, tail = int(queues.head[number]), int(queues.tail[number])
            assert rows[queues.rows(np.array(number), np.arange(head, tail))].tolist() == list(tokens)
            pieces = [rows[row : row + count] for _, count, row in queues.spans(number, head, tail)]
            assert [token for piece in pieces for token in piece] == list(tokens)
    touched = sum(
        -(-int(t) // chunk_length) - int(h) // chunk_length
        for h, t in zip(queues.head, queues.tail, strict=True)
    )
    assert queues.num_chunks - queues._num_free == touched
    assert queues.nbytes() == ChunkedQueues.required_bytes(num_queues, capacity, chunk_length)


@given(
    chunk_length=st.integers(1, 8),
    actions=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)), max_size=60),
)
@settings(max_examples=100, deadline=None)
def test_extending_a_queue_is_as_many_appends(chunk_length: int, actions: list[tuple[int, int, int]]) -> None:
    at_once, one_by_one = (ChunkedQueues(3, 25, chunk_length) for _ in range(2))
    rows = np.zeros((2, at_once.num_rows), np.int64)
    for token, (queue, drops, count) in enumerate(actions):
        for queues in (at_once, one_by_one):
            queues.drop(queue, min(drops, int(queues.lengths[queue])))
        count = min(count, 25 - int(at_once.lengths.sum()))
        rows[0, at_once.extend(queue, count)] = 100 * token + np.arange(count)
        for number in range(count):
            rows[1, one_by_one.append(np.array([queue]))] = 100 * token + number
        assert at_once._num_free == one_by_one._num_free
        assert at_once.tail.tolist() == one_by_one.tail.tolist()
        for number in range(3):
            held = np.arange(int(at_once.head[number]), int(at_once.tail[number]))
            values = [rows[i, q.rows(np.array(number), held)] for i, q in enumerate((at_once, one_by_one))]
            np.testing.assert_array_equal(*values)


def test_each_queue_may_need_two_chunks_more_than_its_entries_fill() -> None:
    # Two entries per queue: one in the last row of a chunk, and one in the first row of the next.
    queues = ChunkedQueues(num_queues=2, capacity=4, chunk_length=4)
    for queue in (0, 1):
        queues.append(np.array([queue]))
        for _ in range(3):
            queues.drop(queue, 1)
            queues.append(np.array([queue]))
        queues.append(np.array([queue]))
    assert queues.lengths.tolist() == [2, 2]
    assert queues.num_chunks - queues._num_free == 4 <= queues.num_chunks


def test_appending_over_the_capacity_is_caught() -> None:
    queues = ChunkedQueues(num_queues=1, capacity=1, chunk_length=1)
    for _ in range(queues.num_chunks):
        queues.append(np.array([0]))
    with pytest.raises(AssertionError, match="more entries than the capacity"):
        queues.append(np.array([0]))


def test_entries_are_numbered_through_the_queues_and_empty_ones_have_none() -> None:
    queue, rank = locate(np.array([3, 0, 2]), np.arange(5))
    assert queue.tolist() == [0, 0, 0, 2, 2]
    assert rank.tolist() == [0, 1, 2, 0, 1]
