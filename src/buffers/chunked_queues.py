"""FIFO queues that share one pool of equal-sized chunks. They manage row numbers, not the rows' contents."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64, Integer

TABLE_DTYPE = np.dtype(np.int32)
COUNTER_DTYPE = np.dtype(np.int64)


def rows_needed(num_queues: int, capacity: int, chunk_length: int) -> int:
    """Return the number of rows, in whole chunks, that is always sufficient for `capacity` entries in total.

    A queue of n entries occupies at most n / chunk_length + 2 - 2 / chunk_length chunks, because both ends
    may lie inside a chunk. An empty queue occupies at most 1. The sum is less than capacity / chunk_length +
    2 * num_queues.
    """
    return (-(-capacity // chunk_length) + 2 * num_queues) * chunk_length


def _table_width(capacity: int, chunk_length: int) -> int:
    """Return the maximum number of chunks that a single queue can occupy."""
    return -(-capacity // chunk_length) + 1


class ChunkedQueues:
    """Queues whose entries have an absolute index (never reused) and a row of the pool (reused immediately).

    Appending and dropping take the same time at any fill level. The caller must keep the total within
    `capacity`.
    """

    def __init__(self, num_queues: int, capacity: int, chunk_length: int) -> None:
        self.num_rows = rows_needed(num_queues, capacity, chunk_length)
        """Number of rows that the caller must provide."""

        self.num_chunks = self.num_rows // chunk_length
        self.chunk_length = chunk_length
        self.head = np.zeros(num_queues, COUNTER_DTYPE)
        self.tail = np.zeros(num_queues, COUNTER_DTYPE)
        self._table = np.full((num_queues, _table_width(capacity, chunk_length)), 0, TABLE_DTYPE)
        self._free = np.arange(self.num_chunks, dtype=TABLE_DTYPE)
        self._num_free = self.num_chunks

    @staticmethod
    def required_bytes(num_queues: int, capacity: int, chunk_length: int) -> int:
        """Return the `nbytes` of queues with these parameters without creating them."""
        table = num_queues * _table_width(capacity, chunk_length)
        free = rows_needed(num_queues, capacity, chunk_length) // chunk_length
        return (table + free) * TABLE_DTYPE.itemsize + 2 * num_queues * COUNTER_DTYPE.itemsize

    def nbytes(self) -> int:
        """Size of the index in bytes, excluding the caller's rows."""
        return self.head.nbytes + self.tail.nbytes + self._table.nbytes + self._free.nbytes

    @property
    def lengths(self) -> Int64[np.ndarray, "queues"]:
        """Number of entries in each queue."""
        return self.tail - self.head

    def rows(
        self, queue: Integer[np.ndarray, "..."], index: Integer[np.ndarray, "..."]
    ) -> Int64[np.ndarray, "..."]:
        """Return the rows of existing entries. `queue` and `index` are broadcast."""
        slot = (index // self.chunk_length) % self._table.shape[1]
        return self._table[queue, slot].astype(COUNTER_DTYPE) * self.chunk_length + index % self.chunk_length

    def append(self, queues: Integer[np.ndarray, "chosen"]) -> Int64[np.ndarray, "chosen"]:
        """Append one entry to each queue in `queues` (distinct numbers) and return the entries' rows."""
        index = self.tail[queues]
        starts_chunk = index % self.chunk_length == 0
        if starts_chunk.any():
            self._take_chunks(queues[starts_chunk], index[starts_chunk] // self.chunk_length)
        self.tail[queues] += 1
        return self.rows(queues, index)

    def extend(self, queue: int, count: int) -> Int64[np.ndarray, "count"]:
        """Append `count` entries to one queue and return their rows in order."""
        start = int(self.tail[queue])
        stop = start + count
        chunks = np.arange(-(-start // self.chunk_length), -(-stop // self.chunk_length))
        self._take_chunks(np.full(len(chunks), queue), chunks)
        self.tail[queue] = stop
        return self.rows(np.array(queue), np.arange(start, stop))

    def drop(self, queue: int, count: int) -> Int64[np.ndarray, "chunks"]:
        """Drop the `count` oldest entries of a queue. Free and return all chunks before the new head."""
        first = int(self.head[queue]) // self.chunk_length
        self.head[queue] += count
        slots = np.arange(first, int(self.head[queue]) // self.chunk_length) % self._table.shape[1]
        freed = self._table[queue, slots].astype(COUNTER_DTYPE)
        self._free[self._num_free : self._num_free + len(slots)] = freed
        self._num_free += len(slots)
        return freed

    def spans(self, queue: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Split [start, stop) at chunk boundaries and yield (index, count, row) for each piece in order."""
        while start < stop:
            count = min(self.chunk_length - start % self.chunk_length, stop - start)
            chunk = int(self._table[queue, start // self.chunk_length % self._table.shape[1]])
            yield start, count, chunk * self.chunk_length + start % self.chunk_length
            start += count

    def held_spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (queue, index, count, row) for all entries, queue by queue, split at chunk boundaries."""
        for queue, (head, tail) in enumerate(zip(self.head.tolist(), self.tail.tolist(), strict=True)):
            for index, count, row in self.spans(queue, head, tail):
                yield queue, index, count, row

    def restore(self, head: Sequence[int], tail: Sequence[int]) -> None:
        """Set the entries of each queue to [head, tail). The caller must then fill their rows."""
        self.head[:] = head
        self.tail[:] = tail
        self._num_free = self.num_chunks
        self._free[:] = np.arange(self.num_chunks)
        for queue in range(len(self.head)):
            last = -(-int(self.tail[queue]) // self.chunk_length)
            chunks = np.arange(int(self.head[queue]) // self.chunk_length, last)
            self._take_chunks(np.full(len(chunks), queue), chunks)

    def _take_chunks(
        self, queues: Integer[np.ndarray, "chunks"], chunks: Integer[np.ndarray, "chunks"]
    ) -> None:
        """Assign a free chunk to each (queue, chunk number within the queue)."""
        self._num_free -= len(chunks)
        assert self._num_free >= 0, "more entries than the capacity"
        taken = self._free[self._num_free : self._num_free + len(chunks)]
        self._table[queues, chunks % self._table.shape[1]] = taken


def locate(
    counts: Int64[np.ndarray, "queues"], entry: Int64[np.ndarray, "batch"]
) -> tuple[Int64[np.ndarray, "batch"], Int64[np.ndarray, "batch"]]:
    """Return (queue, rank within the queue) for entries numbered across all queues, queue by queue."""
    ends = np.cumsum(counts)
    queue = np.searchsorted(ends, entry, side="right")
    return queue, entry - (ends - counts)[queue]
