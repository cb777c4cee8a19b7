"""Prefetched batches match those sampled directly from replay with the same random stream."""

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.buffers import BatchFeed, SequenceBatch

from .reference import make_buffer
from .toy_episodes import toy_episode

WINDOWS, UPDATES = 8, 6
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def tensors_in(batch: SequenceBatch) -> list[Tensor]:
    found: list[Tensor] = []
    batch.map(lambda values: found.append(values.cpu().clone()) or values)
    return found


def fresh_latents(update: int, device: str) -> tuple[Tensor, Tensor]:
    values = torch.full((WINDOWS, 3, 3), update + 100, device=device)
    return values[..., :2].float(), values


@pytest.mark.parametrize("store_latents", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_drawing_ahead_changes_no_batch(device: str, store_latents: bool) -> None:
    plain, fed = (make_buffer(store_latents=store_latents) for _ in range(2))
    feed = BatchFeed(fed, WINDOWS, torch.device(device))
    for buffer in (plain, fed):
        buffer.add_episode(0, toy_episode(30))
    for update in range(UPDATES):
        expected, found = plain.sample(WINDOWS), feed.next()
        assert found.action.device.type == device
        for a, b in zip(tensors_in(expected), tensors_in(found), strict=True):
            assert torch.equal(a, b)
        np.testing.assert_array_equal(found.positions.start, expected.positions.start)
        if update < UPDATES - 1:
            feed.draw_ahead()
        if store_latents:
            plain.write_back(expected.positions, *fresh_latents(update, "cpu"))
            fed.write_back(found.positions, *fresh_latents(update, device))
    assert plain.content_hash() == fed.content_hash()


def test_a_context_is_read_again_as_it_is_now() -> None:
    buffer, twin = (make_buffer() for _ in range(2))
    for each in (buffer, twin):
        each.add_episode(0, toy_episode(30))
    drawn = buffer.sample(WINDOWS)
    before = tensors_in(drawn)
    for each in (buffer, twin):
        each.write_back(drawn.positions, *fresh_latents(0, "cpu"))
    buffer.read_context(drawn)
    # The same sample, after the write.
    late = tensors_in(twin.sample(WINDOWS))
    assert all(torch.equal(a, b) for a, b in zip(tensors_in(drawn), late, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, late, strict=True))
