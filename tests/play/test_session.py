"""Properties of a session with untrained networks and the real emulator."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reverie_play import DreamSession, Frame, action_names, key_map
from reverie_play.session import KEPT_FRAMES, SKIPPED_STEPS, dreamer_with_pictures

from examples.catch_tensors import CatchTensors
from reverie.envs import EnvConfig, Suite, make_environment
from reverie.envs.registered import register_maker
from reverie.memory import no_growth
from reverie.models import LatentState, Noise
from reverie.utils.errors import UserError
from reverie.utils.seeding import named_seed, torch_generator
from reverie.utils.timestep import ActionSpec, TimeStep
from reverie.workflows.world_models import DreamerWorkflow
from reverie.workflows.world_models.config import DecoderUse, Objective

from ..models.tiny import CPU
from ..workflows.tiny import IMAGE, tiny_workflow

SEED = 3
ACTIONS = (2, 2, 3, 0, 5, 4, 3, 1)


@pytest.fixture
def workflow() -> DreamerWorkflow:
    return tiny_workflow(IMAGE)


@pytest.fixture
def session(workflow: DreamerWorkflow) -> Iterator[DreamSession]:
    with closing(DreamSession(workflow, EnvConfig(), "image", 45)) as session:
        yield session


def split(frame: Frame) -> list[NDArray[np.uint8]]:
    return np.split(frame.pictures, 3, axis=1)


def arrivals(actions: tuple[int, ...]) -> list[TimeStep]:
    """Return the game's steps without a session."""
    with closing(make_environment(EnvConfig(), named_seed(SEED, "play"))) as environment:
        first = environment.reset()
        return [first, *[environment.step(np.eye(6, dtype=np.float32)[[action]]) for action in actions]]


def are_equal(left: Frame, right: Frame) -> bool:
    return all(np.array_equal(getattr(left, each.name), getattr(right, each.name)) for each in fields(Frame))


def test_the_first_picture_of_a_dream_is_the_decoders_picture_of_the_posterior(
    session: DreamSession, workflow: DreamerWorkflow
) -> None:
    frame = session.restart(SEED)
    real, dream, difference = split(frame)
    [arrival] = arrivals(())
    world_model, noise = workflow.world_model, Noise(torch_generator(SEED, "play/real"), CPU)
    with torch.no_grad():
        before = world_model.rssm.initial(1)
        _, posterior = workflow.act(arrival, torch.zeros(1, 6), noise, Noise(None, CPU), before)
        assert world_model.decoder is not None
        decoded = world_model.decoder.to_raw(world_model.decoder(LatentState.stack([posterior], 1)))
        critic = workflow.controller.critic
        value = float(critic.mean(critic(posterior.feature)))
    assert np.array_equal(real, arrival.observation["image"][0])
    assert np.array_equal(dream, decoded["image"][0, 0].numpy())
    assert np.array_equal(difference, np.abs(real.astype(int) - dream))
    assert frame.value == pytest.approx((value, value), rel=1e-4) and frame.age == frame.step == 0


def test_the_game_is_the_environments_own_and_the_dream_is_the_models_imagination(
    session: DreamSession, workflow: DreamerWorkflow
) -> None:
    session.restart(SEED)
    start = session._now.state
    frames = [session.step(action) for action in ACTIONS]
    seen = [arrival.observation["image"][0] for arrival in arrivals(ACTIONS)[1:]]
    assert np.array_equal([split(frame)[0] for frame in frames], seen)
    rssm, noise = workflow.world_model.rssm, Noise(torch_generator(SEED, "play/dream"), CPU)
    onehot, drawn = torch.eye(6)[list(ACTIONS)], torch.cat([rssm.noise(noise, 1, 1) for _ in ACTIONS])
    with torch.no_grad():
        states, _ = rssm.imagine(start, lambda step, _: onehot[[step]], drawn)
        reward, _ = workflow.world_model.predict(torch.cat([state.feature for state in states]))
    assert torch.equal(states[-1].deter, session._dream.deter)
    assert [frame.reward[1] for frame in frames] == pytest.approx(reward[1:].tolist(), rel=1e-4)
    assert frames[-1].score[1] == pytest.approx(float(reward[1:].sum()), rel=1e-4)
    assert all(frame.surprise > 0 and 0 <= min(frame.continuation) for frame in frames)


def test_sessions_of_one_seed_are_equal_and_of_another_are_not(session: DreamSession) -> None:
    actions = (*ACTIONS, *[None] * 8)
    played = [[session.restart(seed), *map(session.step, actions)] for seed in (SEED, SEED, SEED + 1)]
    assert all(map(are_equal, played[0], played[1]))
    assert not any(map(are_equal, played[0][1:], played[2][1:]))


def test_the_same_actions_after_going_back_are_the_same_game_and_other_actions_another(
    session: DreamSession,
) -> None:
    session.restart(SEED)
    for action in ACTIONS:
        session.step(action)
    start = session.begin_dream()

    def play(actions: tuple[int, ...]) -> list[Frame]:
        return [session.back(), *map(session.step, actions)]

    once, again, other = play(ACTIONS), play(ACTIONS), play((5,) * len(ACTIONS))
    pictures = [[split(frame)[0] for frame in frames] for frames in (once, again, other)]
    assert np.array_equal(pictures[0], pictures[1]) and not np.array_equal(pictures[0], pictures[2])
    assert np.array_equal(split(start)[1], split(again[0])[1])
    assert [frame.step for frame in again] == [start.step + i for i in range(len(ACTIONS) + 1)]


def test_a_dream_lives_as_long_as_the_horizon_and_an_episode_begins_another(
    workflow: DreamerWorkflow,
) -> None:
    env = EnvConfig(max_episode_frames=24, noop_max=0)
    with closing(DreamSession(workflow, env, "image", horizon=3)) as session:
        session.restart(SEED)
        frames = [session.step(0) for _ in range(8)]
        assert [(frame.step, frame.age) for frame in frames] == [
            (1, 1), (2, 2), (3, 3), (4, 0), (5, 1), (6, 2), (0, 0), (1, 1),
        ]  # fmt: skip
        assert [frame.is_last for frame in frames] == [False] * 5 + [True] + [False] * 2
        session.horizon = 1
        # The first step has no delay.
        assert session.step(0).age == 0


def test_a_vector_environment_may_return_tensors(workflow: DreamerWorkflow) -> None:
    env = EnvConfig(suite=Suite.vector, id=register_maker(CatchTensors), action_repeat=1)
    with closing(DreamSession(workflow, env, "image", 45)) as session:
        game, dream, difference = split(session.restart(SEED))
    assert (difference == np.abs(game.astype(int) - dream)).all() and game.any()


def test_skipping_leads_to_a_later_moment_of_the_game(session: DreamSession) -> None:
    session.restart(SEED)
    frame = session.skip()
    assert (frame.step, frame.age) == (SKIPPED_STEPS, 0)
    assert session.new_game().step == 0


def test_only_a_bounded_number_of_pictures_is_kept(session: DreamSession) -> None:
    frames = [session.restart(SEED), *[session.step(0) for _ in range(KEPT_FRAMES + 5)]]
    expected = [frame.pictures for frame in frames[-KEPT_FRAMES:]]
    assert np.array_equal(session.frames(), expected)
    session.restart(SEED)
    assert len(session.frames()) == 1


def test_memory_is_flat(session: DreamSession) -> None:
    session.restart(SEED)
    no_growth(steps=60)(lambda: session.step(None))()


def of_two_choices() -> DreamerWorkflow:
    workflow = tiny_workflow(IMAGE)
    workflow.env = replace(workflow.env, action=ActionSpec(5, is_discrete=True, parts=(2, 3)))
    return workflow


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (object(), "run=x is a population, which has no world model and cannot dream."),
        (tiny_workflow(), "run=x: tiny has no image observation to show."),
        (
            of_two_choices(),
            "run=x: tiny has no single discrete action that keys could select.",
        ),
        (
            tiny_workflow(IMAGE, world_model={"objective": Objective.barlow, "decoder": DecoderUse.off}),
            "run=x was trained with world_model.decoder=off, so its dreams cannot be shown. "
            "Train with world_model.decoder=detached.",
        ),
    ],
)
def test_what_cannot_be_played_is_refused(agent: object, message: str) -> None:
    with pytest.raises(UserError) as refused:
        dreamer_with_pictures(cast(Any, agent), "run=x")
    assert str(refused.value) == message


def test_atari_names_its_actions_and_others_have_numbers() -> None:
    pong = action_names(EnvConfig(), 6)
    assert pong == ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]
    keys = key_map(pong)
    assert {held: pong[keys[held]] for held in ("", "up", "down+fire", "up+left")} == {
        "": "NOOP", "up": "RIGHT", "down+fire": "LEFTFIRE", "up+left": "LEFT",
    }  # fmt: skip
    every = action_names(EnvConfig(full_action_space=True), 18)
    assert sorted(key_map(every).values()) == list(range(18))
    assert action_names(EnvConfig(suite=Suite.catch, action_repeat=1), 3) == ["0", "1", "2"]
