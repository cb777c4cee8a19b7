"""Many first-in-first-out queues in one pool of equal chunks: the rows of entries, not their contents."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64, Integer

TABLE_DTYPE = np.dtype(np.int32)
COUNTER_DTYPE = np.dtype(np.int64)


def rows_needed(num_queues: int, capacity: int, chunk_length: int) -> int:
    """Return the rows, whole chunks, of a pool that never runs out while it holds at most `capacity` entries.

    A queue of n entries touches at most n / chunk_length + 2 - 2 / chunk_length chunks (both ends may lie
    inside a chunk), and an empty one keeps at most the chunk of its next entry. Summed over the queues
    that is less than capacity / chunk_length + 2 * num_queues.
    """
    return (-(-capacity // chunk_length) + 2 * num_queues) * chunk_length


def _table_width(capacity: int, chunk_length: int) -> int:
    """Return the most chunks that a single queue can touch."""
    return -(-capacity // chunk_length) + 1


class ChunkedQueues:
    """Queues whose entries have absolute indices (never reused) and occupy rows of a pool (reused at once).

    Appending and dropping allocate nothing and cost the same at any fill. The caller must not let all queues
    together exceed `capacity`.
    """

    def __init__(self, num_queues: int, capacity: int, chunk_length: int) -> None:
        self.num_rows = rows_needed(num_queues, capacity, chunk_length)
        """Rows that the caller must provide."""

        self.num_chunks = self.num_rows // chunk_length
        self.chunk_length = chunk_length
        self.head = np.zeros(num_queues, COUNTER_DTYPE)
        self.tail = np.zeros(num_queues, COUNTER_DTYPE)
        self._table = np.full((num_queues, _table_width(capacity, chunk_length)), 0, TABLE_DTYPE)
        self._free = np.arange(self.num_chunks, dtype=TABLE_DTYPE)
        self._num_free = self.num_chunks

    @staticmethod
    def required_bytes(num_queues: int, capacity: int, chunk_length: int) -> int:
        """Return the future `nbytes` of such queues, without making them."""
        table = num_queues * _table_width(capacity, chunk_length)
        free = rows_needed(num_queues, capacity, chunk_length) // chunk_length
        return (table + free) * TABLE_DTYPE.itemsize + 2 * num_queues * COUNTER_DTYPE.itemsize

    def nbytes(self) -> int:
        """Return the bytes of the index held here; the rows are the caller's."""
        return self.head.nbytes + self.tail.nbytes + self._table.nbytes + self._free.nbytes

    @property
    def lengths(self) -> Int64[np.ndarray, "queues"]:
        """Entries in each queue."""
        return self.tail - self.head

    def rows(
        self, queue: Integer[np.ndarray, "..."], index: Integer[np.ndarray, "..."]
    ) -> Int64[np.ndarray, "..."]:
        """Return the rows of held entries; `queue` and `index` broadcast."""
        slot = (index // self.chunk_length) % self._table.shape[1]
        return self._table[queue, slot].astype(COUNTER_DTYPE) * self.chunk_length + index % self.chunk_length

    def append(self, queues: Integer[np.ndarray, "chosen"]) -> Int64[np.ndarray, "chosen"]:
        """Make room for one more entry in each of the (distinct) `queues` and return its rows."""
        index = self.tail[queues]
        starts_chunk = index % self.chunk_length == 0
        if starts_chunk.any():
            self._take_chunks(queues[starts_chunk], index[starts_chunk] // self.chunk_length)
        self.tail[queues] += 1
        return self.rows(queues, index)

    def extend(self, queue: int, count: int) -> Int64[np.ndarray, "count"]:
        """Make room for `count` more entries in one queue and return their rows, in order."""
        start = int(self.tail[queue])
        stop = start + count
        chunks = np.arange(-(-start // self.chunk_length), -(-stop // self.chunk_length))
        self._take_chunks(np.full(len(chunks), queue), chunks)
        self.tail[queue] = stop
        return self.rows(np.array(queue), np.arange(start, stop))

    def drop(self, queue: int, count: int) -> Int64[np.ndarray, "chunks"]:
        """Forget the `count` oldest entries of a queue; free and return chunks wholly before the new head."""
        first = int(self.head[queue]) // self.chunk_length
        self.head[queue] += count
        slots = np.arange(first, int(self.head[queue]) // self.chunk_length) % self._table.shape[1]
        freed = self._table[queue, slots].astype(COUNTER_DTYPE)
        self._free[self._num_free : self._num_free + len(slots)] = freed
        self._num_free += len(slots)
        return freed

    def spans(self, queue: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (index, count, row) of the pieces of [start, stop) that lie in one chunk each, in order."""
        while start < stop:
            count = min(self.chunk_length - start % self.chunk_length, stop - start)
            chunk = int(self._table[queue, start // self.chunk_length % self._table.shape[1]])
            yield start, count, chunk * self.chunk_length + start % self.chunk_length
            start += count

    def held_spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (queue, index, count, row) of the pieces of all entries, one queue after the other."""
        for queue, (head, tail) in enumerate(zip(self.head.tolist(), self.tail.tolist(), strict=True)):
            for index, count, row in self.spans(queue, head, tail):
                yield queue, index, count, row

    def restore(self, head: Sequence[int], tail: Sequence[int]) -> None:
        """Hold [head, tail) in each queue, in rows that the caller fills next."""
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
        """Give a free chunk to each (queue, number of the chunk in that queue)."""
        self._num_free -= len(chunks)
        assert self._num_free >= 0, "more entries than the capacity"
        taken = self._free[self._num_free : self._num_free + len(chunks)]
        self._table[queues, chunks % self._table.shape[1]] = taken


def locate(
    counts: Int64[np.ndarray, "queues"], entry: Int64[np.ndarray, "batch"]
) -> tuple[Int64[np.ndarray, "batch"], Int64[np.ndarray, "batch"]]:
    """Return (queue, rank in it) of entries numbered through all queues, one queue after the other."""
    ends = np.cumsum(counts)
    queue = np.searchsorted(ends, entry, side="right")
    return queue, entry - (ends - counts)[queue]
