"""Streams saved by several buffers are redistributed to more or fewer buffers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie.buffers import EpisodeReplayBuffer
from reverie.utils.errors import UserError

from .reference import advance, fill, held_values, make_buffer
from .saved import Saves, full_copy, same_content

Part = tuple[Path, Path]


def saved(buffer: EpisodeReplayBuffer, folder: Path) -> Part:
    saves = Saves(folder)
    saves.save(buffer)
    return saves.kept[-1][0], saves.shared


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("cross_episodes", [True, False])
def test_four_streams_in_parts_of_one_and_three_and_back_are_the_same_four(
    tmp_path: Path, compressed: bool, cross_episodes: bool
) -> None:
    def make(num_envs: int) -> EpisodeReplayBuffer:
        settings: dict[str, Any] = {"compressed": compressed, "cross_episodes": cross_episodes}
        return make_buffer(num_envs=num_envs, capacity=200, store_latents=True, **settings)

    whole = make(4)
    # The records exceed the capacity, so old episodes are evicted.
    fill(whole, 4, 60, seed=3)
    part = saved(whole, tmp_path / "whole")
    one, three = make(1), make(3)
    one.load_streams([part], 0)
    three.load_streams([part], 1)
    assert one.total_steps + three.total_steps == whole.total_steps
    parts = [saved(one, tmp_path / "one"), saved(three, tmp_path / "three")]
    again = make(4)
    again.load_streams(parts, 0)
    copies = [full_copy(buffer) for buffer in (whole, again)]
    for copy in copies:
        # Ranks sample their own windows.
        del copy["generator"]
    assert same_content(*copies)


@pytest.mark.parametrize("seed", range(4))
def test_streams_that_do_not_fit_lose_their_oldest_records(tmp_path: Path, seed: int) -> None:
    whole = make_buffer(num_envs=3, capacity=120)
    world = fill(whole, 3, 38, seed=seed)
    part = saved(whole, tmp_path)
    small = make_buffer(num_envs=3, capacity=50)
    small.load_streams([part], 0)
    assert 48 <= small.total_steps <= 50
    lengths = small._index.records.lengths.tolist()
    ends = np.cumsum(whole._index.records.lengths)
    rewards = held_values(whole, "reward")
    newest = [rewards[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    assert torch.equal(held_values(small, "reward"), torch.cat(newest))
    # The number of episodes equals the number of begins, plus the remainder of a cut episode at a stream's
    # head.
    begins = np.split(full_copy(small)["begins"].numpy(), np.cumsum(lengths)[:-1])
    assert small._index.num_episodes == sum(1 + int(each[1:].sum()) for each in begins if len(each))
    # This evicts all loaded records.
    advance(small, world, 40, np.random.default_rng(seed))
    assert small.total_steps <= 50 and small.can_sample
    assert len(small.sample(4).reward) == 4


def test_more_streams_than_there_are_and_other_fields_are_refused(tmp_path: Path) -> None:
    whole = make_buffer(num_envs=2)
    fill(whole, 2, 10)
    part = saved(whole, tmp_path)
    with pytest.raises(UserError, match="have 2 streams, not 3"):
        make_buffer(num_envs=2).load_streams([part], 1)
    with pytest.raises(UserError, match="differ from this run's fields"):
        make_buffer(num_envs=2, store_latents=False).load_streams([part], 0)
