"""Random interleavings of add, evict, sample and write-back agree with the slow reference."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reverie.buffers import EpisodeReplayBuffer, ReplayStorage, SequenceBatch

from .reference import (
    LATENT,
    OUTCOMES,
    ReferenceReplay,
    ToyWorld,
    held_values,
    make_buffer,
    reward_of,
    rows_of,
)


@st.composite
def histories(draw: st.DrawFn) -> dict:
    """Draw settings of a buffer and its history: outcomes of each step, and when to sample or write."""
    num_envs = draw(st.integers(1, 3))
    window_length = draw(st.integers(2, 5))
    latent_every = draw(st.sampled_from([n for n in range(1, 5) if (window_length - 1) % n == 0]))
    outcome = st.sampled_from(OUTCOMES[:1] * 5 + OUTCOMES)
    return {
        "num_envs": num_envs,
        "window_length": window_length,
        "capacity": draw(st.integers(num_envs * window_length, 30)),
        "chunk_length": latent_every * draw(st.integers(1, 7 // latent_every)),
        "latent_every": latent_every,
        "compressed": draw(st.booleans()),
        "cross_episodes": draw(st.booleans()),
        "storage": draw(st.sampled_from([ReplayStorage.ram, ReplayStorage.mmap])),
        "steps": draw(
            st.lists(
                st.tuples(
                    st.lists(outcome, min_size=num_envs, max_size=num_envs), st.booleans(), st.booleans()
                ),
                min_size=1,
                max_size=40,
            )
        ),
    }


@given(history=histories())
@settings(max_examples=250, deadline=None)
def test_every_interleaving_equals_the_slow_reference(tmp_path_factory, history: dict) -> None:
    num_envs, window_length = history["num_envs"], history["window_length"]
    settings = {key: value for key, value in history.items() if key != "steps"}
    folder: Path = tmp_path_factory.getbasetemp()
    buffer = make_buffer(directory=folder, **settings)
    own = ("num_envs", "capacity", "window_length", "cross_episodes", "latent_every")
    reference = ReferenceReplay(**{key: history[key] for key in own})
    world, batches = ToyWorld(num_envs), []
    for step, (outcomes, samples, writes_back) in enumerate(history["steps"]):
        arrived = world.advance(outcomes)
        buffer.add(*arrived)
        reference.add(*arrived)
        assert_same_sizes(buffer, reference)
        assert buffer.can_sample == (buffer.num_windows > 0)
        if samples and buffer.can_sample:
            batch = buffer.sample(4)
            assert_true_and_private(batch, buffer, reference)
            batches.append(batch)
        if writes_back and batches:
            # The batch is often so old that part of it is evicted.
            old = batches[step % len(batches)]
            deter = torch.full((4, window_length - 1, LATENT.deter_size), float(step))
            deter += torch.arange(4)[:, None, None] / 8
            stoch = torch.full((4, window_length - 1, LATENT.num_latents), step % 256)
            buffer.write_back(old.positions, deter, stoch)
            reference.write_back(old.positions.env, old.positions.start, deter, stoch)
    held = [record for env in range(num_envs) for record in reference.stream(env)]
    for name in ("deter", "stoch", "reward"):
        every = 1 if name == "reward" else history["latent_every"]
        expected = [getattr(record, name) for record in held if record.index % every == 0]
        found = held_values(buffer, name).numpy()
        assert len(found) == len(expected)
        np.testing.assert_array_equal(found, np.array(expected).reshape(found.shape))


def assert_same_sizes(buffer: EpisodeReplayBuffer, reference: ReferenceReplay) -> None:
    assert buffer.total_steps == reference.total_steps <= reference.capacity
    assert buffer._index.num_episodes == reference.num_episodes
    assert buffer.num_windows == len(reference.starts())
    records = buffer._index.records
    length = records.chunk_length
    # A freed chunk is available immediately.
    needed = np.ceil(records.tail / length) - records.head // length
    assert records.num_chunks - records._num_free == needed.sum() <= records.num_chunks


def assert_true_and_private(
    batch: SequenceBatch, buffer: EpisodeReplayBuffer, reference: ReferenceReplay
) -> None:
    starts = reference.starts()
    for row, (env, start) in enumerate(zip(batch.positions.env, batch.positions.start, strict=True)):
        assert (env, start) in starts
        records = reference.window(env, start)
        for key in records[0].observation:
            expected = np.stack([record.observation[key] for record in records])
            np.testing.assert_array_equal(batch.observation[key][row].numpy(), expected)
            assert batch.observation[key].numpy().dtype == expected.dtype
        np.testing.assert_array_equal(batch.action[row].numpy(), [record.action for record in records])
        assert batch.reward[row].tolist() == [record.reward for record in records]
        assert batch.is_first[row].tolist() == [record.is_first for record in records]
        assert batch.is_terminal[row].tolist() == [record.is_terminal for record in records]
        next_is_first = [record.is_first for record in records[1:]] + [False]
        ends = [r.is_last or follows for r, follows in zip(records, next_is_first, strict=True)]
        assert batch.is_last[row].tolist() == ends
        assert batch.context is not None
        np.testing.assert_array_equal(batch.context.deter[row].numpy(), records[0].deter)
        np.testing.assert_array_equal(batch.context.stoch[row].numpy(), records[0].stoch)
        # The reward depends on the previous action.
        for before, after in pairwise(records):
            assert after.reward == (0.0 if after.is_first else reward_of(before.action))
    arena = [] if buffer.config.compressed else rows_of(buffer).values()
    for tensor in tensors_of(batch):
        assert tensor.is_contiguous()
        assert not any(np.shares_memory(tensor.numpy(), field.numpy()) for field in arena)


def tensors_of(batch: SequenceBatch) -> list[Tensor]:
    assert batch.context is not None
    fields = [batch.action, batch.reward, batch.is_first, batch.is_last, batch.is_terminal]
    return [*batch.observation.values(), *fields, batch.context.deter, batch.context.stoch]
