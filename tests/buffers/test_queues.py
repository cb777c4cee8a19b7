"""Queues that share a pool of chunks."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.buffers.queues import ChunkedQueues, locate


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
    assert queues.num_chunks_used == touched
    assert queues.nbytes() == ChunkedQueues.required_bytes(num_queues, capacity, chunk_length)


def test_each_queue_may_need_two_chunks_more_than_its_entries_fill() -> None:
    # Two entries in each queue, one in the last row of a chunk and one in the first row of the next.
    queues = ChunkedQueues(num_queues=2, capacity=4, chunk_length=4)
    for queue in (0, 1):
        queues.append(np.array([queue]))
        for _ in range(3):
            queues.drop(queue, 1)
            queues.append(np.array([queue]))
        queues.append(np.array([queue]))
    assert queues.lengths.tolist() == [2, 2]
    assert queues.num_chunks_used == 4 <= queues.num_chunks


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
