"""The starts of windows that must each lie inside one episode."""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Int64

from .chunked_queues import COUNTER_DTYPE, ChunkedQueues


class EpisodeStarts:
    """The start of every window that lies inside one episode, oldest first, in one queue per environment.

    A queue returns its n-th entry at once, so a uniform draw costs the same for any episodes. There are
    never more starts than records, so a pool of the records' capacity suffices.
    """

    def __init__(self, num_envs: int, capacity: int, chunk_length: int) -> None:
        self.queues = ChunkedQueues(num_envs, capacity, chunk_length)
        self._values = np.full(self.queues.num_rows, 0, COUNTER_DTYPE)

    @classmethod
    def required_bytes(cls, num_envs: int, capacity: int, chunk_length: int, num_rows: int) -> int:
        """Return the future `nbytes`."""
        return num_rows * COUNTER_DTYPE.itemsize + ChunkedQueues.required_bytes(
            num_envs, capacity, chunk_length
        )

    def nbytes(self) -> int:
        """Return the bytes held."""
        return self._values.nbytes + self.queues.nbytes()

    def append(self, envs: Int64[np.ndarray, "chosen"], start: Int64[np.ndarray, "chosen"]) -> None:
        """Add one start to each of `envs`."""
        self._values[self.queues.append(envs)] = start

    def extend(self, env: int, start: int, count: int) -> None:
        """Add the `count` starts from stream index `start` on to one environment."""
        self._values[self.queues.extend(env, count)] = np.arange(start, start + count)

    def drop_before(self, env: int, index: int) -> None:
        """Forget the starts before stream index `index`."""
        count = 0
        for _, length, row in self.queues.spans(env, int(self.queues.head[env]), int(self.queues.tail[env])):
            older = int(np.searchsorted(self._values[row : row + length], index))
            count += older
            if older < length:
                break
        self.queues.drop(env, count)

    def at(
        self, env: Int64[np.ndarray, "batch"], rank: Int64[np.ndarray, "batch"]
    ) -> Int64[np.ndarray, "batch"]:
        """Return the `rank`-th oldest start of each environment in `env`."""
        return self._values[self.queues.rows(env, self.queues.head[env] + rank)]

    def rebuild(self, pieces: Callable[[int], Iterator[Int64[np.ndarray, "piece"]]]) -> None:
        """Hold the starts that `pieces(env)` yields in order; it is iterated twice."""
        num_envs = len(self.queues.head)
        counts = [sum(len(piece) for piece in pieces(env)) for env in range(num_envs)]
        self.queues.restore([0] * num_envs, counts)
        for env in range(num_envs):
            rank = 0
            for piece in pieces(env):
                for index, count, row in self.queues.spans(env, rank, rank + len(piece)):
                    self._values[row : row + count] = piece[index - rank : index - rank + count]
                rank += len(piece)
