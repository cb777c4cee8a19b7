"""Rejected calls leave the buffer unchanged, bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import config as jaxtyping_config

from reverie.buffers import EpisodeReplayBuffer, SampledPositions, StoredLatent
from reverie.utils.timestep import TimeStep

from .reference import ToyWorld, fill, make_buffer
from .saved import full_copy, same_content
from .toy_episodes import toy_episode, transition_buffer


@pytest.fixture(autouse=True)
def _as_users_run_it() -> None:
    """Disable the runtime type checker, because it would reject most of these calls before the buffer."""
    jaxtyping_config.update("jaxtyping_disable", True)


Step = tuple[TimeStep, np.ndarray, StoredLatent]


def arrival(**changes: Callable[[np.ndarray], np.ndarray]) -> Callable[[Step], Step]:
    """Change fields of the incoming step."""
    return lambda step: (
        replace(step[0], **{name: change(getattr(step[0], name)) for name, change in changes.items()}),
        *step[1:],
    )


def observed(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Callable[[Step], Step]:
    return lambda step: (replace(step[0], observation=change(step[0].observation)), *step[1:])


def latent(**changes: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Step], Step]:
    return lambda step: (
        *step[:2],
        replace(step[2], **{name: change(getattr(step[2], name)) for name, change in changes.items()}),
    )


WRONG_STEPS: dict[str, Callable[[Step], Step]] = {
    "an image of another shape": observed(lambda o: o | {"image": o["image"][:, :1]}),
    "an image of another dtype": observed(lambda o: o | {"image": o["image"].astype(np.float32)}),
    "an observation is missing": observed(lambda o: {"image": o["image"]}),
    "an observation too many": observed(lambda o: o | {"more": o["speed"]}),
    "an action of another width": lambda s: (s[0], s[1][:, :1], s[2]),
    "a wide action": lambda s: (s[0], s[1].astype(np.float64), s[2]),
    "an action of one environment": lambda s: (s[0], s[1][:1], s[2]),
    "a wide reward": arrival(reward=lambda r: r.astype(np.float64)),
    "rewards in a column": arrival(reward=lambda r: r[:, None]),
    "flags of one environment": arrival(is_first=lambda f: f[:1], is_last=lambda f: f[:1]),
    "flags as numbers": arrival(is_terminal=lambda f: f.astype(np.int64)),
    "deter of another width": latent(deter=lambda d: d[:, :1]),
    "deter as whole numbers": latent(deter=lambda d: d.long()),
    "stoch of another width": latent(stoch=lambda s: s[:, :2]),
    "stoch of another dtype": latent(stoch=lambda s: s.long()),
}


def assert_refuses(buffer: EpisodeReplayBuffer, call: Callable[..., object], *arguments: Any) -> None:
    """Check that the call fails and that the buffer is unchanged."""
    before, content = full_copy(buffer), buffer.content_hash()
    with pytest.raises(ValueError):
        call(*arguments)
    assert (same_content(full_copy(buffer), before), buffer.content_hash()) == (True, content)


@pytest.mark.parametrize("steps", [5, 60])
@pytest.mark.parametrize("wrong", WRONG_STEPS.values(), ids=WRONG_STEPS)
def test_a_step_that_does_not_fit_changes_nothing(wrong: Callable[[Step], Step], steps: int) -> None:
    """This must be true both with free space and when an episode would have to be evicted."""
    buffer = make_buffer(num_envs=2)
    world = fill(buffer, num_envs=2, steps=steps)
    step = world.advance(["go on", "go on"])
    assert_refuses(buffer, buffer.add, *wrong(step))
    buffer.add(*step)


def test_a_read_only_step_and_one_in_columns_are_taken_as_they_are() -> None:
    plain, other = make_buffer(num_envs=2), make_buffer(num_envs=2)
    step, action, stored = ToyWorld(2).advance(["go on", "go on"])
    plain.add(step, action, stored)
    step.reward.flags.writeable = False
    other.add(step, np.asfortranarray(action), stored)
    assert plain.content_hash() == other.content_hash()


@pytest.mark.parametrize("env", [-1, 2])
def test_an_episode_of_no_environment_changes_nothing(env: int) -> None:
    buffer = transition_buffer(num_envs=2)
    assert_refuses(buffer, buffer.add_episode, env, toy_episode(5))


def test_an_end_that_is_a_number_counts_as_a_flag() -> None:
    buffers = [transition_buffer(), transition_buffer()]
    for buffer, is_terminal in zip(buffers, (True, 5), strict=True):
        buffer.add_episode(0, replace(toy_episode(5), is_terminal=is_terminal))
    assert buffers[0].content_hash() == buffers[1].content_hash()


@pytest.mark.parametrize(
    ("deter", "stoch", "shift"),
    [
        ((8, 3, 1), (8, 3, 3), 0),
        ((8, 3, 2), (8, 3, 2), 0),
        ((7, 3, 2), (7, 3, 3), 0),
        ((8, 3, 2), (8, 3, 3), 99),
    ],
    ids=["deter", "stoch", "rows", "records that never were"],
)
def test_latents_that_do_not_fit_change_nothing(
    deter: tuple[int, ...], stoch: tuple[int, ...], shift: int
) -> None:
    buffer = make_buffer(num_envs=2)
    fill(buffer, num_envs=2, steps=30)
    drawn = buffer.sample(8, np.random.default_rng(0)).positions
    positions = SampledPositions(env=drawn.env, start=drawn.start + shift)
    assert_refuses(
        buffer, buffer.write_back, positions, torch.ones(deter), torch.ones(stoch, dtype=torch.int64)
    )


def test_a_buffer_without_latents_refuses_them() -> None:
    buffer = transition_buffer()
    buffer.add_episode(0, toy_episode(5))
    positions = buffer.sample(2).positions
    assert_refuses(buffer, buffer.write_back, positions, torch.ones(2, 1, 2), torch.ones(2, 1, 3).long())
