"""Rows for the replay: adding, sampling, and sampling at different fill levels."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from heapwatch.counters.glibc import in_use_bytes
from torch import Tensor

from benchmarks.suite.bench import Bench, pong_spec
from benchmarks.suite.compare import OURS, Blocks, compare
from benchmarks.suite.data import flagged, random_actions, random_arrival
from benchmarks.suite.results import Floor, Result
from benchmarks.suite.timing import Local, Variant
from reverie.buffers import EpisodeReplayBuffer, ReplayStorage, StoredLatent
from reverie.config.dreamer import DreamerTrainConfig
from reverie.orchestration.orchestrator import build_replay
from reverie.orchestration.recipes import recipe_of

_ENVS = 8
_POOL = 64
"""Number of random vector steps that are prepared in advance and added repeatedly."""

_LIMIT = "limit: "
_COPY, _GATHER = f"{_LIMIT}copy by torch", f"{_LIMIT}gather by torch"
_COPY_ALONE = f"{_LIMIT}copy by NumPy, one thread"
_NOTES = {
    "torchrl": "SliceSampler; extend() by 100 steps of one environment at a time",
    "cpprb": "not windows: as many single steps, because it does not support sequences",
}


class Feeder:
    """A replay and the data to add to it.

    Args:
        config: Configuration of the replay, for 8 environments.
        folder: Folder for a file-backed replay.
    """

    def __init__(self, config: DreamerTrainConfig, folder: Path) -> None:
        self.env = pong_spec(_ENVS)
        before = in_use_bytes()
        self.replay: EpisodeReplayBuffer = build_replay(
            config, recipe_of(config).replay_spec(config, self.env), folder
        )
        self.owned_bytes = in_use_bytes() - before
        generator = np.random.default_rng(0)
        self._arrivals = [random_arrival(self.env, generator) for _ in range(_POOL)]
        self._actions = [random_actions(self.env, generator) for _ in range(_POOL)]
        model = config.model
        self._latent = (
            StoredLatent(torch.zeros(_ENVS, model.deter), torch.zeros(_ENVS, model.stoch, dtype=torch.uint8))
            if self.replay.stores_latents
            else None
        )
        self._step = 0

    def add(self) -> None:
        """Add one record per environment."""
        index = self._step % _POOL
        self.replay.add(flagged(self._arrivals[index], self._step), self._actions[index], self._latent)
        self._step += 1

    def fill(self, records: int) -> None:
        """Add records until all environments together have added `records` records."""
        while self._step * _ENVS < records:
            self.add()

    @property
    def sizes(self) -> dict[str, float]:
        """Return the bytes per record, as declared by the fields and as measured over the capacity."""
        declared = sum(spec.nbytes for spec in self.replay.plan.fields.values())
        measured = self.owned_bytes / self.replay.config.capacity
        return {
            "declared_bytes_per_step": declared,
            "measured_bytes_per_step": measured,
            "measured_over_declared": measured / declared,
        }


def replay_add(bench: Bench, row: str) -> list[Result]:
    """Measure adding one record per environment, with 8 of them, to a full replay of 100,000 records."""
    with TemporaryDirectory() as folder:
        plain = Feeder(_config(bench, "buffer.store_latents=false"), Path(folder))
        latents = Feeder(_config(bench, "buffer.store_latents=true", "model=size1m"), Path(folder))
        ours = []
        for name, feeder in ((OURS, plain), (f"{OURS} with latents of size1m", latents)):
            feeder.fill(feeder.replay.config.capacity)
            ours.append(Local(name, feeder.add, facts=dict(feeder.sizes)))
        limits = _Limits(plain.replay.config.capacity, images=_ENVS)
        limit = Local(_COPY, limits.scatter)
        variants = [*ours, limit, *_peers(bench, "add")]
        return compare(bench, row, variants, _copy_floor, {"steps/s": _ENVS}, _NOTES)


def replay_sample(bench: Bench, row: str) -> list[Result]:
    """Measure sampling 16 windows of 64 steps (65 records in Reverie) from 100,000 records.

    The limits are measured in the same run: gathering the same number of random windows of images into
    existing memory, and copying one piece of the same size, both from an equally large memory.
    """
    with TemporaryDirectory() as folder:
        config = _config(bench, "buffer.store_latents=false")
        feeder = Feeder(config, Path(folder))
        feeder.fill(config.buffer.capacity)
        replay, size = feeder.replay, config.training.batch_size
        kept = replay.sample(size)
        nbytes = _batch_bytes(kept)
        device = torch.device("cuda") if config.buffer.storage is ReplayStorage.cuda else torch.device("cpu")
        ours = [
            Local(OURS, lambda: replay.sample(size, out=kept), device),
            Local(f"{OURS} into new memory", lambda: replay.sample(size), device),
        ]
        limits = _Limits(config.buffer.capacity, images=size * replay.window_length)
        beside = [
            Local(_GATHER, lambda: limits.gather(replay.window_length)),
            Local(_COPY, limits.copy),
            Local(_COPY_ALONE, limits.copy_alone),
        ]
        derived = {"batches/s": 1.0, "GB/s": nbytes / 1e9}
        variants = [*ours, *beside, *_peers(bench, "sample")]
        return compare(bench, row, variants, _copy_floor, derived, _NOTES)


def replay_fill(bench: Bench, row: str) -> list[Result]:
    """Measure sampling a batch at fill levels of 10 %, 50 % and 100 %, and after wrap-around."""
    levels = {OURS: 1.0, "10 % full": 0.1, "50 % full": 0.5, "1.5 times round": 1.5}
    with TemporaryDirectory() as folder:
        config = _config(bench, "buffer.store_latents=false")
        size = config.training.batch_size
        feeders = {name: Feeder(config, Path(folder)) for name in levels}
        for name, feeder in feeders.items():
            feeder.fill(int(levels[name] * config.buffer.capacity))
        variants = [Local(name, _sampler(feeder.replay, size)) for name, feeder in feeders.items()]
        length = feeders[OURS].replay.window_length
        limits = _Limits(config.buffer.capacity, images=size * length)
        variants += [
            Local(_GATHER, lambda: limits.gather(length)),
            Local(_COPY, limits.copy),
        ]
        return compare(bench, row, variants, _copy_floor, {"batches/s": 1.0})


def _sampler(replay: EpisodeReplayBuffer, size: int) -> Callable[[], Any]:
    kept = replay.sample(size)
    return lambda: replay.sample(size, out=kept)


class _Limits:
    """Lower bounds for a replay: copying the same number of image bytes from an equally large memory.

    Args:
        records: Number of images in the memory.
        images: Number of images copied per call.
    """

    def __init__(self, records: int, images: int) -> None:
        size = 64 * 64 * 3
        self._arena = torch.zeros(records, size, dtype=torch.uint8).random_(256)
        self._moved = torch.zeros(images, size, dtype=torch.uint8)
        self._generator = np.random.default_rng(0)

    def gather(self, length: int) -> None:
        """Copy random windows of `length` images."""
        starts = self._generator.integers(len(self._arena) - length, size=len(self._moved) // length)
        rows = torch.from_numpy((starts[:, None] + np.arange(length)).ravel())
        torch.index_select(self._arena, 0, rows, out=self._moved)

    def copy(self) -> None:
        """Copy a random piece from the memory with all threads."""
        self._moved.copy_(self._piece())

    def copy_alone(self) -> None:
        """Copy a random piece from the memory with one thread."""
        np.copyto(self._moved.numpy(), self._piece().numpy())

    def scatter(self) -> None:
        """Copy images to a random place in the memory."""
        self._piece().copy_(self._moved)

    def _piece(self) -> Tensor:
        start = int(self._generator.integers(len(self._arena) - len(self._moved)))
        return self._arena[start : start + len(self._moved)]


def _copy_floor(blocks: Blocks) -> Floor:
    """Return the best copy time in the same run."""
    limits = [taken for name, taken in blocks.items() if name.startswith(_LIMIT)]
    best = min(median(block.seconds) for taken in limits for block in taken)
    return Floor(best, "the best block of the limits beside it: as many bytes of images copied or gathered")


def _config(bench: Bench, *overrides: str) -> DreamerTrainConfig:
    capacity = 2048 if bench.settings.quick else 100_000
    return bench.compose(f"env.num_envs={_ENVS}", f"buffer.capacity={capacity}", *overrides)


def _peers(bench: Bench, mode: str) -> list[Variant]:
    options = {"mode": mode, "envs": _ENVS, "steps": 2048 if bench.settings.quick else 100_000}
    names = ("sheeprl", "torchrl", "cpprb")
    return [peer for name in names for peer in bench.peers(name, f"{name}_replay", **options)]


def _batch_bytes(batch: Any) -> int:
    """Return the bytes of all tensors in a batch."""
    single = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    return sum(value.nbytes for value in [*batch.observation.values(), *single] if isinstance(value, Tensor))
