"""Index of the stored records: episodes and window starts."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64

from ..utils.units import count_text
from .batch import SampledPositions
from .chunked_queues import COUNTER_DTYPE, ChunkedQueues, locate, rows_needed
from .fields import ReplaySpec


@runtime_checkable
class Room(Protocol):
    """Interface of chunk memory for eviction."""

    def has_room(self, chunks: int) -> bool:
        """Return whether this many more full chunks fit, regardless of their contents."""
        ...

    def free(self, chunks: Int64[np.ndarray, "chunks"]) -> None:
        """Free chunks after all their records have been dropped."""
        ...


class EpisodeIndex:
    """Streams of records, one per environment, in which episodes are contiguous.

    If `room` or `capacity` is exhausted, the longest stream loses its oldest complete episode. While all
    streams grow equally, this is the oldest overall. If the stream consists of one open episode, it loses
    individual records, oldest first. Slower and later-starting streams keep as many records as the others.
    """

    def __init__(self, spec: ReplaySpec, room: Room) -> None:
        pool = spec.num_envs, spec.config.capacity, spec.config.chunk_length
        self.capacity, self.window_length = spec.config.capacity, spec.window_length
        self.start_every, self._reach, self._room = spec.start_every, spec.reach, room
        self.records = ChunkedQueues(*pool)
        self.has_been_short = False
        """Whether records were dropped because memory ran out before `capacity` was reached."""

        self.starts = None if spec.config.cross_episodes else EpisodeStarts(*pool)
        # `begins` marks the first record of each episode, `_episode_start` the newest episode of each stream.
        self.begins = np.full(self.records.num_rows, False)
        self._envs = np.arange(spec.num_envs)
        self._num_complete = np.zeros(spec.num_envs, COUNTER_DTYPE)
        self._is_open = np.zeros(spec.num_envs, np.bool_)
        self._episode_start = np.zeros(spec.num_envs, COUNTER_DTYPE)

    @staticmethod
    def required_bytes(spec: ReplaySpec) -> int:
        """Return the `nbytes` of such an index without allocating it."""
        pool = spec.num_envs, spec.config.capacity, spec.config.chunk_length
        num_rows, queues = rows_needed(*pool), ChunkedQueues.required_bytes(*pool)
        starts = 0 if spec.config.cross_episodes else queues + num_rows * COUNTER_DTYPE.itemsize
        return queues + starts + num_rows + spec.num_envs * (3 * COUNTER_DTYPE.itemsize + 1)

    def nbytes(self) -> int:
        """Size of the index in bytes. The index is always in host memory."""
        own = [self.begins, self._envs, self._num_complete, self._is_open, self._episode_start]
        starts = self.starts.values.nbytes + self.starts.queues.nbytes() if self.starts else 0
        return sum(array.nbytes for array in own) + self.records.nbytes() + starts

    @property
    def total_steps(self) -> int:
        """Number of stored records."""
        return int(self.records.lengths.sum())

    @property
    def num_episodes(self) -> int:
        """Number of episodes with stored records, including open episodes."""
        return int(self._num_complete.sum() + self._is_open.sum())

    @property
    def window_counts(self) -> Int64[np.ndarray, "envs"]:
        """Number of distinct windows in each stream."""
        if self.starts:
            return self.starts.queues.lengths
        last = (self.records.tail - self.window_length) // self.start_every
        return np.maximum(last - self._first_start() + 1, 0)

    @property
    def newest_counts(self) -> Int64[np.ndarray, "envs"]:
        """Number of windows in the newest quarter of each stream, rounded up."""
        return -(-self.window_counts // 4)

    def _first_start(self) -> Int64[np.ndarray, "envs"]:
        """Return the oldest window start in each stream, in units of `start_every`."""
        return -(-self.records.head // self.start_every)

    def add(
        self,
        is_first: Bool[np.ndarray, "envs"],
        is_last: Bool[np.ndarray, "envs"],
        envs: Int64[np.ndarray, "envs"] | None = None,
    ) -> Int64[np.ndarray, "envs"]:
        """Drop old records, then add one per environment in `envs` (default: all). Return the rows."""
        envs = self._envs if envs is None else envs
        index = self.records.tail[envs]
        full = int(((index + 1) % self.records.chunk_length == 0).sum())
        self._make_room(len(envs), full)
        rows = self.records.append(envs)
        begins = is_first | ~self._is_open[envs]
        self.begins[rows] = begins
        # An episode ends with its last record. An abandoned episode ends when the next episode begins.
        self._num_complete[envs] += (begins & self._is_open[envs]).astype(COUNTER_DTYPE) + is_last
        self._episode_start[envs[begins]] = index[begins]
        self._is_open[envs] = ~is_last
        if self.starts:
            start = index - (self.window_length - 1)
            is_inside = start >= np.maximum(self._episode_start[envs] - self._reach, self.records.head[envs])
            chosen = np.flatnonzero(is_inside & (start % self.start_every == 0))
            self.starts.values[self.starts.queues.append(envs[chosen])] = start[chosen]
        return rows

    def add_episode(self, env: int, length: int) -> Int64[np.ndarray, "length"]:
        """Drop old records, then add a complete episode to one stream. Return the rows to fill.

        Raises:
            ValueError: If the stream is unknown, any episode is open, or the new episode is too long. Nothing
                has been changed in this case.
        """
        if not 0 <= env < len(self._envs):
            raise ValueError(f"environment {env} is not in [0, {len(self._envs)})")
        if length > self.capacity:
            raise ValueError(f"an episode has {count_text(length, 'record')}, but capacity={self.capacity}")
        # Making room could otherwise cut an open episode.
        if self._is_open.any():
            open_envs = np.flatnonzero(self._is_open).tolist()
            raise ValueError(f"add_episode while episodes of environments {open_envs} are open")
        start = int(self.records.tail[env])
        self._make_room(length, length // self.records.chunk_length + 1)
        rows = self.records.extend(env, length)
        self.begins[rows] = False
        self.begins[rows[0]] = True
        self._num_complete[env] += 1
        self._episode_start[env] = start
        if self.starts:
            first = max(start - self._reach, int(self.records.head[env]))
            self._add_starts(env, np.arange(first, start + length - self.window_length + 1))
        return rows

    def windows(self, indices: Int64[np.ndarray, "batch"]) -> SampledPositions:
        """Return the windows at these indices. Windows are numbered stream by stream, oldest first."""
        env, rank = locate(self.window_counts, indices)
        start = (
            self.starts.at(env, rank) if self.starts else (self._first_start()[env] + rank) * self.start_every
        )
        return SampledPositions(env=env, start=start)

    def newest(self, indices: Int64[np.ndarray, "batch"]) -> Int64[np.ndarray, "batch"]:
        """Convert indices of the newest windows (see `newest_counts`) to indices for `windows`."""
        newest = self.newest_counts
        env, rank = locate(newest, indices)
        return np.cumsum(self.window_counts)[env] - newest[env] + rank

    def in_order(self) -> tuple[Int64[np.ndarray, "records"], Int64[np.ndarray, "windows"]]:
        """Return the rows of all records, stream by stream, and each window start's position among them."""
        lengths = self.records.lengths
        env, rank = locate(lengths, np.arange(self.total_steps))
        rows = self.records.rows(env, self.records.head[env] + rank)
        all_windows = self.windows(np.arange(self.window_counts.sum()))
        moved = np.cumsum(lengths) - lengths - self.records.head
        return rows, all_windows.start + moved[all_windows.env]

    def _add_starts(self, env: int, starts: Int64[np.ndarray, "starts"]) -> None:
        assert self.starts is not None
        self.starts.extend(env, starts[starts % self.start_every == 0])

    def _make_room(self, count: int, full: int) -> None:
        """Drop old records until `count` more records and `full` more chunks fit."""
        excess = self.total_steps + count - self.capacity
        while excess > 0 or not self._room.has_room(full):
            self.has_been_short |= excess <= 0
            env = int(self.records.lengths.argmax())
            if self._num_complete[env]:
                stop = self._end_of_oldest_episode(env)
                self._num_complete[env] -= 1
            else:
                # The longest stream contains at least one whole window, so it never becomes empty.
                stop = int(self.records.head[env]) + 1
            dropped = stop - int(self.records.head[env])
            self._room.free(self.records.drop(env, dropped))
            excess -= dropped
            if self.starts:
                self.starts.drop_before(env, stop)

    def _end_of_oldest_episode(self, env: int) -> int:
        """Return the stream index where the oldest episode ends. All calls together read each record once."""
        head, tail = int(self.records.head[env]), int(self.records.tail[env])
        for index, count, row in self.records.spans(env, head + 1, tail):
            begins = self.begins[row : row + count]
            if begins.any():
                return index + int(begins.argmax())
        return tail

    def state_dict(self) -> dict[str, Any]:
        """Return all state except `begins` as lists of numbers."""
        return {
            "head": self.records.head.tolist(),
            "tail": self.records.tail.tolist(),
            "num_complete": self._num_complete.tolist(),
            "is_open": self._is_open.tolist(),
            "episode_start": self._episode_start.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved index. The caller must then fill `begins` and call `rebuild_starts`."""
        self.records.restore(state["head"], state["tail"])
        self._num_complete[:] = state["num_complete"]
        self._is_open[:] = state["is_open"]
        self._episode_start[:] = state["episode_start"]

    def count_episodes(self) -> None:
        """Recount the episodes using `begins`, after streams have lost their oldest records."""
        head, tail = self.records.head.tolist(), self.records.tail.tolist()
        for env, (first, end) in enumerate(zip(head, tail, strict=True)):
            rows = self.records.rows(np.array(env), np.arange(first + 1, end))
            self._is_open[env] &= first < end
            episodes = int(first < end) + int(self.begins[rows].sum())
            self._num_complete[env] = episodes - int(self._is_open[env])
        self._episode_start[:] = np.maximum(self._episode_start, self.records.head)

    def rebuild_starts(self) -> None:
        """Rebuild the window starts from `begins`. The window length may differ from the saved run's."""
        if self.starts is None:
            return
        zeros = [0] * len(self._envs)
        self.starts.queues.restore(zeros, zeros)
        episode_start = self.records.head.copy()
        for env, index, count, row in self.records.held_spans():
            stream_index = np.arange(index, index + count)
            begun = np.where(self.begins[row : row + count], stream_index, episode_start[env])
            episode_starts = np.maximum.accumulate(begun)
            episode_start[env] = episode_starts[-1]
            start = stream_index - (self.window_length - 1)
            first = np.maximum(episode_starts - self._reach, self.records.head[env])
            self._add_starts(env, start[start >= first])


class EpisodeStarts:
    """Starts of windows whose trained steps all belong to one episode: a queue per environment, oldest first.

    Starts never outnumber records, so the same capacity is sufficient.
    """

    def __init__(self, num_envs: int, capacity: int, chunk_length: int) -> None:
        self.queues = ChunkedQueues(num_envs, capacity, chunk_length)
        self.values = np.full(self.queues.num_rows, 0, COUNTER_DTYPE)

    def extend(self, env: int, starts: Int64[np.ndarray, "starts"]) -> None:
        """Append starts to one environment's queue, oldest first."""
        self.values[self.queues.extend(env, len(starts))] = starts

    def drop_before(self, env: int, index: int) -> None:
        """Drop all starts before stream index `index`."""
        count = 0
        for _, length, row in self.queues.spans(env, int(self.queues.head[env]), int(self.queues.tail[env])):
            older = int(np.searchsorted(self.values[row : row + length], index))
            count += older
            if older < length:
                break
        self.queues.drop(env, count)

    def at(
        self, env: Int64[np.ndarray, "batch"], rank: Int64[np.ndarray, "batch"]
    ) -> Int64[np.ndarray, "batch"]:
        """Return the `rank`-th oldest start of each environment in `env`."""
        return self.values[self.queues.rows(env, self.queues.head[env] + rank)]
