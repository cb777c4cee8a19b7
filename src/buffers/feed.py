"""Batches on their way from replay to the device that learns from them."""

from dataclasses import replace

import torch
from torch import Tensor

from .batch import SequenceBatch, StoredLatent
from .config import ReplayStorage
from .episode_replay import EpisodeReplayBuffer


class BatchFeed:
    """Draws batches of `windows` windows and brings them to `device`.

    Out of host memory they go to a GPU from one pinned buffer, by a stream of their own: a batch that is
    drawn ahead travels while the update before it runs. The buffer is filled again when that copy has ended,
    which waits for no update, so a second one would gain nothing.
    """

    def __init__(self, replay: EpisodeReplayBuffer, windows: int, device: torch.device) -> None:
        self._replay, self._windows, self._device = replay, windows, device
        is_far = device.type == "cuda" and replay.config.storage is not ReplayStorage.cuda
        self._stream = torch.cuda.Stream(device) if is_far else None
        self._ahead: SequenceBatch | None = None
        self.sampled: SequenceBatch | None = None
        """The memory that replay writes its batches into, or wrote the last one into."""

    def draw_ahead(self) -> None:
        """Draw what `next` will return, if it has a way to go; no record may be added in between."""
        if self._stream is not None:
            self._ahead = self._draw()

    def next(self) -> SequenceBatch:
        """Return a batch of the latents that replay holds now; on a CPU it is good until the next one.

        Raises:
            ValueError: If there is no window.
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
            # A GPU may still judge an update when the next batch is drawn, and name what was in its own.
            reused = self.sampled if self._device.type == "cpu" else None
            self.sampled = self._replay.sample(self._windows, out=reused)
            return self.sampled
        self._stream.synchronize()
        is_pinned = self.sampled is not None
        sampled = self._replay.sample(self._windows, out=self.sampled)
        self.sampled = sampled if is_pinned else sampled.map(Tensor.pin_memory)
        return self.sampled.map(self._moved)

    def _moved(self, pinned: Tensor) -> Tensor:
        """Return a tensor on the device, copied beside what runs there; what comes later waits for it."""
        update_stream = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = pinned.to(self._device, non_blocking=True)
        update_stream.wait_stream(self._stream)  # pyright: ignore[reportArgumentType]
        moved.record_stream(update_stream)  # its memory serves again when the update has read it
        return moved
