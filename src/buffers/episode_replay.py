"""The replay buffer. It allocates its memory once, evicts whole episodes and returns copies."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, Integer
from torch import Tensor

from ..utils.components import SamplerLike
from ..utils.errors import UserError
from ..utils.timestep import TimeStep
from ..utils.units import count_text
from .batch import EpisodeRecords, SampledPositions, SequenceBatch, StoredLatent
from .compressed import CompressedStore, RecordStore
from .divided import SavedPart, load_streams
from .episode_index import EpisodeIndex
from .fields import LATENT_FIELDS, OBSERVATION_PREFIX, ReplaySpec, observation_keys, step_fields_of
from .persistence import ReplayFiles, SavedReplay
from .plan import plan_replay
from .records import episode_fields, read_windows, record_forms, step_fields
from .storage import Arena, check_storage
from .transitions import TransitionBatch, TransitionTable, check_indices, read_transitions, transition_fields

_LOG = logging.getLogger(__name__)


class EpisodeReplayBuffer:
    """Records of several environments in one arena of equal-sized chunks.

    Episodes are contiguous in the chunks of their environment's stream. If a new record would exceed
    `buffer.capacity`, the oldest complete episode is evicted (see `EpisodeIndex` for details). Inputs and
    results are copied. After construction, only `sample` allocates memory, for its batch. With
    `buffer.compressed=true`, full chunks are compressed, and episodes are also evicted when the memory budget
    is full.

    Args:
        generator: The buffer's only source of randomness. The buffer owns it and saves its state. `None`
            means a random seed.
        device: The training device, used only for `buffer.storage=cuda`.
        directory: Folder of the mapped files, used only for `buffer.storage=mmap`.

    Raises:
        UserError: If the budget, the disk or the capacity is too small. Nothing has been allocated then.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        *,
        generator: np.random.Generator | None = None,
        device: torch.device | str = "cpu",
        directory: Path | None = None,
    ) -> None:
        self.config, self.window_length = spec.config, spec.window_length
        self.plan = plan_replay(spec)
        check_storage(spec, self.plan, torch.device(device), directory)
        self.stores_latents = "deter" in self.plan.fields
        self._num_envs, self._forms = spec.num_envs, record_forms(self.plan.fields)
        self._generator = np.random.default_rng() if generator is None else generator
        if self.config.compressed:
            self._store: RecordStore = CompressedStore(spec, self.plan, directory)
        else:
            fields, num_rows = step_fields_of(self.plan.fields), self.plan.num_rows
            self._store = Arena(fields, num_rows, self.config.storage, torch.device(device), directory)
        self._latents = None
        if self.stores_latents:
            fields = {name: self.plan.fields[name] for name in LATENT_FIELDS}
            rows, storage = self.plan.num_rows // spec.start_every, self.config.storage
            self._latents = Arena(fields, rows, storage, torch.device(device), directory)
        self._index = EpisodeIndex(spec, self._store)
        self._files = ReplayFiles(self._index, self._store, self._latents, self._generator)
        self._has_warned = False
        self.sampler: SamplerLike | None = None
        """Draws the windows of batches in place of uniform draws. Set it before any record is added."""

    def add(
        self,
        step: TimeStep,
        action: Float32[np.ndarray, "envs action"] | Float32[Tensor, "envs action"],
        latent: StoredLatent | None = None,
        envs: Int64[np.ndarray, "envs"] | None = None,
    ) -> None:
        """Evict old records, then add one record per environment, or only for the distinct `envs`.

        The action was chosen after seeing `step`. Where `is_last` is set, it is never executed and is stored
        as zeros. Observations and actions may be tensors on any device. `latent`, the posterior state after
        seeing `step`, is required if and only if `stores_latents`.

        Raises:
            ValueError: If an array has the wrong shape or dtype. Nothing has been changed in this case.
        """
        if (latent is not None) != self.stores_latents:
            given = type(latent).__name__
            raise ValueError(f"latent is {given}, but buffer.store_latents={self.stores_latents}")
        count = self._num_envs if envs is None else len(envs)
        fields = step_fields(step, action, self._forms, count)
        if latent is not None:
            self._check_latents(latent.deter, latent.stoch, len(step.reward))
            if latent.stoch.dtype is not torch.uint8 or not latent.deter.is_floating_point():
                found = f"{latent.deter.dtype} and {latent.stoch.dtype}"
                raise ValueError(f"latents are {found}, expected floats and uint8")
        rows = self._index.add(step.is_first, step.is_last, envs)
        self._write(rows, fields)
        if latent is not None:
            self._write_latents(rows, latent.deter, latent.stoch)

    def add_episode(self, env: int, episode: EpisodeRecords) -> None:
        """Add a complete episode to one environment's stream.

        With a single stream, this is equivalent to adding each record. For several streams, see
        `EpisodeIndex`. Stored latents are zeros until `write_back` replaces them, because no model has seen
        the records yet.

        Raises:
            ValueError: If the stream does not exist, any stream has an open episode, the episode exceeds the
                capacity, or a field has the wrong shape or dtype. Nothing has been changed in this case.
            UserError: If the episode exceeds the guaranteed capacity of a compressed buffer. Nothing has been
                changed.
        """
        fields, length = episode_fields(episode, self._forms), len(episode.reward)
        if self.config.compressed and length > self.plan.guaranteed:
            budget = f"buffer.memory_budget_gib={self.config.memory_budget_gib:g}"
            held = f"only {self.plan.guaranteed:,} incompressible ones. Raise it."
            raise UserError(f"An episode has {count_text(length, 'record')}, but {budget} fits {held}")
        rows = self._index.add_episode(env, length)
        self._write(rows, fields)
        if self.stores_latents:
            zeros = (torch.zeros(length, *self.plan.fields[name].shape) for name in LATENT_FIELDS)
            self._write_latents(rows, *zeros)

    def episodes(self) -> Iterator[EpisodeRecords]:
        """Yield copies of complete episodes (not open, abandoned or cut), stream by stream, oldest first."""
        records = self._index.records
        for env, (head, tail) in enumerate(zip(records.head.tolist(), records.tail.tolist(), strict=True)):
            rows = records.rows(np.array(env), np.arange(head, tail))
            firsts, lasts = (np.flatnonzero(mark) for mark in self._values(rows, ["is_first", "is_last"]))
            ends = np.append(lasts, tail - head)[np.searchsorted(lasts, firsts)]
            for first, last, following in zip(firsts, ends, np.append(firsts, tail - head)[1:], strict=True):
                if last < following:
                    yield self._episode(rows[first : last + 1])

    def _episode(self, rows: Int64[np.ndarray, "rows"]) -> EpisodeRecords:
        """Return the records in these rows as an episode."""
        values = dict(zip(self._forms, self._values(rows, list(self._forms)), strict=True))
        observation = {key: values[OBSERVATION_PREFIX + key] for key in observation_keys(values)}
        is_terminal = bool(values["is_terminal"][-1])
        return EpisodeRecords(observation, values["action"], values["reward"], is_terminal)

    def _values(self, rows: Int64[np.ndarray, "rows"], names: list[str]) -> list[np.ndarray]:
        """Return copies of the named fields of these rows in host memory."""
        out = {name: self._store.empty(name, (len(rows),)) for name in names}
        self._store.read(self._store.to_index_tensor(rows), out)
        return [values.cpu().numpy() for values in out.values()]

    def _write(self, rows: Int64[np.ndarray, "rows"], fields: dict[str, Tensor]) -> None:
        """Copy checked fields into the store."""
        self._store.write(self._store.to_index_tensor(rows), fields)
        if self.sampler is not None:
            self.sampler.added(rows)
        if self._index.has_been_short and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "replay: buffer.memory_budget_gib=%g is full with %s records, so old episodes are evicted "
                "before buffer.capacity=%s is reached; raise the budget to keep more",
                self.config.memory_budget_gib,
                f"{self.total_steps:,}",
                f"{self.config.capacity:,}",
            )

    def _write_latents(self, rows: Int64[np.ndarray, "rows"], deter: Tensor, stoch: Tensor) -> None:
        """Store the latents (rows, ...) of distinct records, skipping records without a stored latent."""
        assert self._latents is not None
        every = self._index.start_every
        if every > 1:
            is_kept = rows % every == 0
            if not is_kept.any():
                return
            chosen = torch.from_numpy(np.flatnonzero(is_kept)).to(deter.device)
            rows, deter, stoch = rows[is_kept] // every, deter[chosen], stoch[chosen]
        fresh = {"deter": deter.to(self.plan.fields["deter"].dtype), "stoch": stoch.to(torch.uint8)}
        self._latents.write(self._latents.to_index_tensor(rows), fresh)
        self._files.changed[rows] = True

    @property
    def num_windows(self) -> int:
        """Number of distinct windows that can currently be drawn."""
        return int(self._index.window_counts.sum())

    @property
    def can_sample(self) -> bool:
        """Whether the buffer contains a window. Evicting a long episode can make this false again."""
        return self.num_windows > 0

    def sample(
        self, batch_size: int, generator: np.random.Generator | None = None, out: SequenceBatch | None = None
    ) -> SequenceBatch:
        """Return copies of windows drawn with replacement.

        Each window is drawn uniformly: with probability `buffer.newest_share` from the newest quarter of each
        stream, otherwise from all windows (see `sample_weights` in DIAMOND, arXiv:2405.12399). The batch is
        in host memory, or on the GPU with `buffer.storage=cuda`. If `out`, a previous batch of the same size,
        is given, its memory is reused. `generator` defaults to the buffer's own. The time does not depend on
        the fill level.

        Raises:
            ValueError: If the buffer contains no window, or `out` has a different size.
        """
        if not self.can_sample:
            window = count_text(self.window_length, "step")
            raise ValueError(f"no window of {window} in {count_text(self.total_steps, 'stored step')}")
        if out is not None and len(out.reward) != batch_size:
            raise ValueError(f"out has {count_text(len(out.reward), 'window')}, but batch_size={batch_size}")
        positions = self._index.windows(self._drawn(batch_size, generator or self._generator))
        rows = self._rows(positions)
        batch = read_windows(self._store, self._latents, rows, positions, out)
        self.read_context(batch)
        return batch

    def _drawn(self, count: int, generator: np.random.Generator) -> Int64[np.ndarray, "count"]:
        """Draw window indices."""
        if self.sampler is not None:
            windows = self._index.windows(np.arange(self.num_windows))
            rows = self._index.records.rows(windows.env, windows.start)
            chosen = np.asarray(self.sampler.draw(rows, count, generator))
            is_index = chosen.shape == (count,) and chosen.dtype.kind in "iu"
            if not is_index or not 0 <= chosen.min() <= chosen.max() < len(rows):
                needed = f"{count} integers in [0, {len(rows) - 1}]"
                raise UserError(f"draw of buffer.sampler returned {chosen!r}, but a batch needs {needed}.")
            return chosen
        drawn = generator.integers(self.num_windows, size=count)
        if (share := self.config.newest_share) > 0:
            newest = generator.integers(self._index.newest_counts.sum(), size=count)
            drawn = np.where(generator.random(count) < share, self._index.newest(newest), drawn)
        return drawn

    def learned(self, positions: SampledPositions, losses: Tensor) -> None:
        """Pass the losses (batch,) of sampled windows to the sampler. Evicted windows are skipped."""
        assert self.sampler is not None
        is_held = positions.start >= self._index.records.head[positions.env]
        rows = self._index.records.rows(positions.env[is_held], positions.start[is_held])
        self.sampler.learned(rows, losses.cpu().numpy()[is_held])

    def sampler_state(self) -> dict[str, Any]:
        """Return the sampler's state, with the arrays of rows in the order of the records."""
        if self.sampler is None:
            return {}
        rows, state = self._index.in_order()[0], self.sampler.state_dict()
        return {name: value[rows] if self._is_of_rows(value) else value for name, value in state.items()}

    def load_sampler(self, state: Mapping[str, Any]) -> None:
        """Load a result of `sampler_state` after the records. From an empty one, the sampler starts over."""
        if self.sampler is None:
            return
        rows, loaded = self._index.in_order()[0], dict(state)
        if not state:
            return self.sampler.added(rows)
        for name, own in self.sampler.state_dict().items():
            if self._is_of_rows(own):
                loaded[name] = own.copy()
                loaded[name][rows] = state[name]
        self.sampler.load_state_dict(loaded)

    def _is_of_rows(self, value: Any) -> bool:
        return isinstance(value, np.ndarray) and value.shape[:1] == (self.plan.num_rows,)

    def read_context(self, batch: SequenceBatch) -> None:
        """Reload the context of a sampled batch, so that it includes later changes by `write_back`."""
        if self._latents is not None and batch.context is not None:
            rows = self._index.records.rows(batch.positions.env, batch.positions.start)
            first = self._latents.to_index_tensor(rows // self._index.start_every)
            self._latents.read(first, {"deter": batch.context.deter, "stoch": batch.context.stoch})

    @property
    def num_transitions(self) -> int:
        """Number of transitions. Raise `ValueError` unless windows are pairs of records from one episode."""
        if self.window_length != 2 or self.config.cross_episodes:
            raise ValueError(
                f"transitions need window_length=2 and buffer.cross_episodes=false, got "
                f"window_length={self.window_length} and buffer.cross_episodes={self.config.cross_episodes}"
            )
        return self.num_windows

    def transitions(
        self, indices: Int64[np.ndarray, "batch"], out: TransitionBatch | None = None
    ) -> TransitionBatch:
        """Return copies of these transitions. For errors, see `check_indices` and `num_transitions`."""
        check_indices(indices, self.num_transitions, out)
        rows = self._store.to_index_tensor(self._rows(self._index.windows(indices)))
        return read_transitions(self._read, self._store.fields, rows[:, 0], rows[:, 1], out)

    def _read(self, name: str, rows: Int64[Tensor, "rows"], out: Tensor | None = None) -> Tensor:
        """Copy a field of these rows into `out`, or into a new tensor by default."""
        out = self._store.empty(name, tuple(rows.shape)) if out is None else out
        self._store.read(rows, {name: out})
        return out

    def transition_table(self) -> TransitionTable:
        """Return a copy of all records as plain arrays that yield the same transitions."""
        # This property raises an error if the buffer has no transitions.
        _ = self.num_transitions
        rows, starts = self._index.in_order()
        names = transition_fields(self._store.fields)
        fields = dict(zip(names, self._values(rows, names), strict=True))
        return TransitionTable(fields=fields, starts=starts)

    def _rows(self, positions: SampledPositions) -> np.ndarray:
        """Return the rows (batch, length) of existing windows."""
        index = positions.start[:, None] + np.arange(self.window_length)
        return self._index.records.rows(positions.env[:, None], index)

    def write_back(
        self,
        positions: SampledPositions,
        deter: Float[Tensor, "batch time deter"],
        stoch: Integer[Tensor, "batch time latents"],
        valid: Bool[Tensor, ""] | None = None,
    ) -> None:
        """Replace the stored latents in columns 1 to T of sampled windows with newer ones.

        Records that were evicted after sampling are skipped. Where windows overlap, the later row of the
        batch wins. Latents may be on any device, and `deter` may have any float dtype. Latents are detached.
        If `valid` is false, the stored latents stay unchanged. With `buffer.storage=cuda`, the host does not
        wait for this value.

        Raises:
            ValueError: If a shape is wrong, a record is unknown, or the buffer has no latents. Nothing has
                been changed in this case.
        """
        if not self.stores_latents:
            raise ValueError("write_back requires buffer.store_latents=True")
        self._check_latents(deter, stoch, len(positions.start), self.window_length - 1)
        columns = np.arange(1, self.window_length)
        index = positions.start[:, None] + columns
        if (index[:, -1] >= self._index.records.tail[positions.env]).any():
            raise ValueError("positions refer to records that were never added")
        # Select only records that are still stored and have latents.
        is_kept = index % self._index.start_every == 0
        is_held = (is_kept & (index >= self._index.records.head[positions.env][:, None])).ravel()
        env = np.repeat(positions.env, len(columns))[is_held]
        rows = self._index.records.rows(env, index.ravel()[is_held])
        # Keep only the last of several writes to a row, because their order on the device is undefined.
        unique, from_end = np.unique(rows[::-1], return_index=True)
        source = torch.from_numpy(np.flatnonzero(is_held)[::-1][from_end]).to(deter.device)
        chosen = [values.flatten(0, 1).index_select(0, source) for values in (deter, stoch)]
        if valid is not None:
            assert self._latents is not None
            if self._latents.device.type != "cpu":
                chosen = self._unless(valid, unique // self._index.start_every, *chosen)
            elif not valid:
                return
        self._write_latents(unique, *chosen)

    def _unless(self, valid: Tensor, rows: Int64[np.ndarray, "rows"], *fresh: Tensor) -> list[Tensor]:
        """Return the fresh latents if `valid` is true, or the stored latents of these rows otherwise."""
        assert self._latents is not None
        held = {name: self._latents.empty(name, (len(rows),)) for name in LATENT_FIELDS}
        self._latents.read(self._latents.to_index_tensor(rows), held)
        return [
            torch.where(valid, new, held[name].to(new.dtype)) for name, new in zip(held, fresh, strict=True)
        ]

    def _check_latents(self, deter: Tensor, stoch: Tensor, *shape: int) -> None:
        """Raise ValueError unless the latents have the shape (*shape, size)."""
        found = tuple(deter.shape), tuple(stoch.shape)
        expected = tuple((*shape, *self.plan.fields[name].shape) for name in LATENT_FIELDS)
        if found != expected:
            raise ValueError(f"latents have shapes {found}, expected {expected}")

    @property
    def total_steps(self) -> int:
        """Number of records of all environments, at most `buffer.capacity`."""
        return self._index.total_steps

    def nbytes(self) -> int:
        """Total size in bytes of the arena (in `buffer.storage`) and the index (in host memory)."""
        latents = self._latents.nbytes() if self._latents else 0
        index = self._index.nbytes() + self._store.index_nbytes() + self._files.changed.nbytes
        return self._store.nbytes() + latents + index

    def stats(self) -> dict[str, float]:
        """Return metrics, keyed by the last part of their tags.

        `fill` is in [0, 1], and `aux_bytes` excludes `obs_bytes`. Compressed buffers add `record_bytes`.
        """
        obs_bytes = self.plan.part_bytes["observations"]
        stats = {
            "total_steps": float(self.total_steps),
            "num_episodes": float(self._index.num_episodes),
            "obs_bytes": float(obs_bytes),
            "aux_bytes": float(self.nbytes() - obs_bytes),
            "fill": self.total_steps / self.config.capacity,
        }
        if isinstance(self._store, CompressedStore) and (record_bytes := self._store.row_bytes):
            holds = self._store.most_bytes / record_bytes
            most = max(self.total_steps, min(self.config.capacity, holds))
            stats |= {
                "record_bytes": record_bytes,
                "holds_steps": holds,
                "fill": self.total_steps / most,
            }
        return stats

    def save(self, folder: Path, shared_folder: Path) -> SavedReplay:
        """Write all records and the generator's state. See `ReplayFiles.save`."""
        return self._files.save(folder, shared_folder)

    def commit(self, saved: SavedReplay) -> None:
        """Make `saved` the base of the next save. See `ReplayFiles.commit`."""
        self._files.commit(saved)

    def load(self, folder: Path, shared_folder: Path) -> None:
        """Replace all records with a result of `save`. See `ReplayFiles.load`."""
        self._files.load(folder, shared_folder)

    def load_streams(self, parts: Sequence[SavedPart], first: int) -> None:
        """Load streams saved by several buffers. See `divided.load_streams`."""
        load_streams(parts, first, self._index, self._store, self._latents)

    def reseed(self, generator: np.random.Generator) -> None:
        """Copy the state of another generator."""
        self._generator.bit_generator.state = generator.bit_generator.state

    def content_hash(self) -> str:
        """Return the sha256 of records, index and generator, regardless of rows (about 1 s per GB)."""
        return self._files.content_hash()


ReplayBuffer = EpisodeReplayBuffer
"""Name of the class in the `reverie` package."""
