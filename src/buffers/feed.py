"""Prefetching of replay batches to the training device."""

from dataclasses import replace

import torch
from torch import Tensor

from .batch import SequenceBatch, StoredLatent
from .config import ReplayStorage
from .episode_replay import EpisodeReplayBuffer


class BatchFeed:
    """Samples batches of `windows` windows and copies them to `device`.

    Transfers from host memory to a GPU use one pinned buffer and a separate stream, so that a prefetched
    batch is copied during the previous update. Copies never wait for updates, so a second buffer would not be
    faster.
    """

    def __init__(self, replay: EpisodeReplayBuffer, windows: int, device: torch.device) -> None:
        self._replay, self._windows, self._device = replay, windows, device
        is_far = device.type == "cuda" and replay.config.storage is not ReplayStorage.cuda
        self._stream = torch.cuda.Stream(device) if is_far else None
        self._ahead: SequenceBatch | None = None
        self.sampled: SequenceBatch | None = None
        """The last batch sampled from the replay buffer. Its memory is reused where possible."""

    def draw_ahead(self) -> None:
        """Prefetch the next batch if it must be transferred. Do not add records before calling `next`."""
        if self._stream is not None:
            self._ahead = self._draw()

    def next(self) -> SequenceBatch:
        """Return a batch with the replay buffer's current latents. On a CPU, the next call overwrites it.

        Raises:
            ValueError: If the replay buffer contains no window.
        """
        batch, self._ahead = self._ahead, None
        if batch is None:
            return self._draw()
        assert self._stream is not None and self.sampled is not None
        if (latest := self.sampled.context) is None:
            return batch
        self._stream.synchronize()
        self._replay.read_context(self.sampled)
        return replace(batch, context=StoredLatent(self._moved(latest.deter), self._moved(latest.stoch)))

    def _draw(self) -> SequenceBatch:
        if self._stream is None:
            # On a GPU, the check of the last update may still be pending. Its error report needs the old
            # batch.
            reused = self.sampled if self._device.type == "cpu" else None
            self.sampled = self._replay.sample(self._windows, out=reused)
            return self.sampled
        self._stream.synchronize()
        is_pinned = self.sampled is not None
        sampled = self._replay.sample(self._windows, out=self.sampled)
        self.sampled = sampled if is_pinned else sampled.map(Tensor.pin_memory)
        return self.sampled.map(self._moved)

    def _moved(self, pinned: Tensor) -> Tensor:
        """Copy a tensor to the device while earlier work is running. Later work waits for the copy."""
        update_stream = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = pinned.to(self._device, non_blocking=True)
        update_stream.wait_stream(self._stream)  # pyright: ignore[reportArgumentType]
        # The allocator must not reuse this memory before the update has read it.
        moved.record_stream(update_stream)
        return moved
