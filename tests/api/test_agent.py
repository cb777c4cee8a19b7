"""An agent in Python: the same play as in evaluation, clear errors, and constant memory."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import reverie
from reverie.config.schema import Device
from reverie.envs.episodes import Episode
from reverie.envs.spaces import require_observation
from reverie.memory import no_growth
from reverie.orchestration.evaluation import evaluate
from reverie.orchestration.trained import load_agent
from reverie.utils.seeding import episode_seed, named_seed

from ..envs.toy_world import ToyWorld
from ..runs.helpers import POPULATION


@pytest.mark.parametrize(("name", "sample"), [("catch", True), ("pong", True), ("catch", False)])
def test_an_agent_plays_the_first_episode_of_an_evaluation_frame_for_frame(name: str, sample: bool) -> None:
    run, workflow, _ = load_agent(f"pretrained:{name}", Device.cpu)

    def is_long(_: int, still_open: list[Episode]) -> bool:
        return any(episode.length >= 30 for episode in still_open)

    played = evaluate(workflow, run.env, 1, seed=5, sample=sample, record=True, should_stop=is_long)
    assert played.frames is not None
    agent = reverie.load(f"pretrained:{name}", device="cpu", seed=5)
    own = agent.make_env()
    observation, _ = own.reset(seed=episode_seed(named_seed(5, "evaluate"), 0, 0))
    frames, total = [observation], 0.0
    while len(frames) < len(played.frames):
        observation, reward, *_ = own.step(agent.act(observation, deterministic=not sample))
        frames.append(observation)
        total += float(reward)
    np.testing.assert_array_equal(np.stack(frames), played.frames)
    assert total == [*played.episodes, *played.still_open][0].episode_return


def test_an_episode_begins_with_nothing_of_the_one_before() -> None:
    """With greedy actions and the same noise, an agent that has played acts like a new one."""
    env = gymnasium.make("CartPole-v1")
    first, _ = env.reset(seed=0)
    agent = reverie.load("pretrained:cartpole", device="cpu")
    for step in range(5):
        agent.act(first + step)
    agent.reset()
    agent.act(first)
    fresh = reverie.load("pretrained:cartpole", device="cpu")
    fresh.act(first)
    np.testing.assert_array_equal(*(each._policy.state.deter.numpy() for each in (agent, fresh)))  # pyright: ignore[reportAttributeAccessIssue]


def test_actions_are_elements_of_the_environments_own_space(cartpole_run: Path) -> None:
    agent = reverie.load(cartpole_run, device="cpu")
    env = agent.make_env()
    assert (env.observation_space, env.action_space) == (agent.observation_space, agent.action_space)
    action = agent.act(env.reset(seed=0)[0])
    assert type(action) is int and env.action_space.contains(action)
    assert repr(agent) == "<reverie.Agent for CartPole-v1, trained for 300 steps>"


def test_memory_is_flat_over_hundreds_of_steps_and_no_graph_is_held(cartpole_run: Path) -> None:
    agent = reverie.load(cartpole_run, device="cpu")
    env = agent.make_env()

    @no_growth(steps=24, threshold_mb=0.05)
    def play() -> None:
        agent.reset()
        observation, _ = env.reset(seed=0)
        for _ in range(20):
            observation, *_, truncated, _ = env.step(agent.act(observation))
            if truncated or env.unwrapped.steps_beyond_terminated is not None:  # pyright: ignore[reportAttributeAccessIssue]
                observation, _ = env.reset()
                agent.reset()

    play()
    held: Any = agent._policy
    assert not any(tensor.requires_grad for tensor in (held.prev_action, held.state.deter, held.state.stoch))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros(3, np.float32), r"is float32 of shape \(3,\); CartPole-v1 returns float32 of shape \(4,\)"),
        (np.zeros((1, 4), np.float32), r"is float32 of shape \(1, 4\); .* without a batch axis"),
        (np.zeros(4, np.complex64), r"is complex64 of shape \(4,\)"),
        ({"vector": np.zeros(4)}, "is dict; CartPole-v1 returns float32"),
        ((np.zeros(4), {}), "is tuple; CartPole-v1"),
        (None, "is NoneType; CartPole-v1"),
    ],
)
def test_a_wrong_observation_is_one_sentence_that_names_both(observation: Any, message: str) -> None:
    agent = reverie.load("pretrained:cartpole", device="cpu")
    with pytest.raises(reverie.UserError, match=message):
        agent.act(observation)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"camera": np.zeros((48, 80))}, r"`camera` is float64 of shape \(48, 80\); toy returns uint8 of"),
        ({"mode": 4}, r"`mode` is 4; toy returns Discrete\(3, start=5\)"),
        (
            {"more": 1},
            r"has the keys \['camera', 'mode', 'more', 'pose'\]; toy returns a dict of \['camera', 'm",
        ),
    ],
)
def test_the_wrong_part_of_a_dict_is_named(change: dict[str, Any], message: str) -> None:
    world = ToyWorld()
    given = world.observation_space.sample()
    require_observation(world.observation_space, given, "toy")
    with pytest.raises(reverie.UserError, match=message):
        require_observation(world.observation_space, given | change, "toy")


def test_numbers_of_another_width_are_taken() -> None:
    agent = reverie.load("pretrained:cartpole", device="cpu")
    assert agent.act(np.array([0, 0, 0.1, 0], np.float64)) in (0, 1)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("pretrained:pnog", {}, "Did you mean `pong`"),
        (
            "experiments/none",
            {},
            r"^experiments/none is not a folder\. Pass the folder of a run, e.g. reverie.load",
        ),
        (
            "pretrained:catch",
            {"device": "gpu"},
            "device=gpu is not one of auto, cpu, cuda. Did you mean `cuda`",
        ),
        ("pretrained:catch", {"device": None}, "device=None is not one of auto"),
        ("pretrained:catch", {"seed": -1}, r"seed must be in \[0, 2\*\*32\), got -1"),
        (
            "pretrained:catch",
            {"env": "CartPole-v1", "device": "cpu"},
            "^pretrained:catch does not fit env=CartPole-v1: ",
        ),
        ("pretrained:cartpole", {"env": "catch", "device": "cpu"}, "does not fit env=catch: "),
        ("pretrained:cartpole", {"env": 3}, "env is of type int. Pass an id, a class, or a function"),
    ],
)
def test_what_cannot_be_loaded_is_refused(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(reverie.UserError, match=message):
        reverie.load(source, **options)


def test_a_run_plays_another_environment_of_the_same_spaces_and_no_other(cartpole_run: Path) -> None:
    agent = reverie.load(cartpole_run, env=lambda: gymnasium.make("CartPole-v1"), device="cpu")
    assert agent.make_env().reset(seed=0)[0].shape == (4,)
    with pytest.raises(
        reverie.UserError, match=r"does not fit env=Acrobot-v1: .* is float32 .* instead of .*\. Use"
    ):
        reverie.load(cartpole_run, env="Acrobot-v1", device="cpu")


def test_actions_are_repeated_as_in_training() -> None:
    from reverie.envs import EnvConfig, Suite, make_single

    env = make_single(EnvConfig(suite=Suite.gymnasium, id="CartPole-v1", action_repeat=3, time_limit=7))
    env.reset(seed=0)
    results = [env.step(index % 2) for index in range(3)]
    # These values are for 7 frames.
    assert [result[1] for result in results] == [3.0, 3.0, 1.0]
    assert [result[3] for result in results] == [False, False, True]


def test_an_agent_exposes_its_state_and_world_model_to_continue_a_dream(cartpole_run: Path) -> None:
    agent = reverie.load(cartpole_run, device="cpu")
    agent.act(agent.make_env().reset(seed=0)[0])
    rssm = agent.world_model.rssm
    left = torch.tensor([[1.0, 0.0]])
    states, _ = rssm.imagine(agent.state, lambda *_: left, rssm.noise(reverie.Noise(), 3, 1))
    assert len(states) == 4 and not agent.state.deter.requires_grad
    assert not torch.equal(states[0].deter, states[1].deter)
    own = agent._policy
    assert agent.world_model is own.workflow.world_model  # pyright: ignore[reportAttributeAccessIssue]


def test_an_agent_of_a_population_has_no_world_model(empty_folder: Path) -> None:
    [experiment, *settings] = POPULATION
    short = ["training.generations=1", "run_dir=population"]
    agent = reverie.train(experiment.removeprefix("experiment="), [*settings, *short]).agent
    for ask in (lambda: agent.world_model, lambda: agent.state):
        with pytest.raises(reverie.UserError, match="Pendulum-v1 is from a population and has no world"):
            ask()
