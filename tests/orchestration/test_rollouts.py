"""Whole episodes of many members: their starts, their noise, and failing environments."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from reverie.envs import EnvConfig, EnvironmentCrashed, Suite
from reverie.orchestration.population.engines.rollouts import EngineSettings, RolloutResult, Rollouts
from reverie.utils.errors import UserError
from reverie.workflows.population.config import PopulationConfig, TD3Config
from reverie.workflows.population.members import Members, Sizes

MEMBERS, HIDDEN, SEED = 4, 8, 9


class Walk(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Walks from a start given by the seed until it reaches 0.5. Some raise once in mid-episode."""

    failures_left = 0

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self._place, self._steps = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, object]]:
        super().reset(seed=seed)
        self._place, self._steps = float(self.np_random.uniform(-1, 0)), 0
        return self._seen(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, object]]:
        self._place, self._steps = self._place + 0.1 + 0.05 * float(action[0]), self._steps + 1
        if self._steps == 3 and Walk.failures_left:
            Walk.failures_left -= 1
            raise ArithmeticError("broken")
        return self._seen(), self._place, self._place >= 0.5, False, {}

    def _seen(self) -> NDArray[np.float32]:
        return np.array([self._place, self._steps], np.float32)


@pytest.fixture(autouse=True)
def registered() -> None:
    if "Walk-v0" not in gymnasium.registry:
        make: Any = Walk
        gymnasium.register("Walk-v0", make, max_episode_steps=12)
        gymnasium.register("Endless-v0", make)
    Walk.failures_left = 0


def env_of(env_id: str = "Walk-v0", max_restarts: int = 3) -> EnvConfig:
    return EnvConfig(suite=Suite.gymnasium, id=env_id, action_repeat=1, max_restarts=max_restarts)


def population(evolution: bool = True) -> PopulationConfig:
    return PopulationConfig(size=MEMBERS, evolution=evolution, episodes=2, exploration_episodes=1)


def members(count: int = MEMBERS) -> Members:
    torch.manual_seed(0)
    return Members(Sizes(2, 1, HIDDEN), count, torch.device("cpu"))


def rollouts_of(
    config: PopulationConfig,
    noise: float = 0.5,
    env: EnvConfig | None = None,
    first: int = 0,
    count: int = MEMBERS,
) -> Rollouts:
    settings = EngineSettings(env or env_of(), config, TD3Config(exploration_noise=noise), SEED)
    return Rollouts(settings, first, count)


def play(
    config: PopulationConfig,
    first: int = 0,
    who: Members | None = None,
    generation: int = 1,
    noise: float = 0.5,
) -> RolloutResult:
    who = who or members()
    rollouts = rollouts_of(config, noise, first=first, count=who.count)
    try:
        result = rollouts.play(who, generation, lambda: False)
        assert result is not None
        return result
    finally:
        rollouts.close()


def assert_same(result: RolloutResult, other: RolloutResult) -> None:
    assert (result.fitness, result.lengths) == (other.fitness, other.lengths)
    for mine, theirs in zip(result.episodes, other.episodes, strict=True):
        assert np.array_equal(mine.observation["vector"], theirs.observation["vector"])
        assert np.array_equal(mine.action, theirs.action) and np.array_equal(mine.reward, theirs.reward)
        assert mine.is_terminal == theirs.is_terminal


def test_episodes_hold_all_their_records() -> None:
    result = play(population())
    assert len(result.episodes) == len(result.lengths) == 2 * MEMBERS + 1
    for episode, length in zip(result.episodes, result.lengths, strict=True):
        place, steps = episode.observation["vector"].T
        assert np.array_equal(steps, np.arange(length + 1))
        assert episode.reward[0] == 0
        np.testing.assert_allclose(episode.reward[1:], place[1:], rtol=1e-5)
        np.testing.assert_allclose(np.diff(place), 0.1 + 0.05 * episode.action[:-1, 0], rtol=1e-3)
        assert episode.is_terminal == bool(place[-1] >= 0.5)
        assert length <= 12 and (episode.is_terminal or length == 12)
    assert {episode.is_terminal for episode in result.episodes} == {True, False}


def test_all_members_meet_the_same_episodes_and_noise_is_for_explorers() -> None:
    result = play(population(evolution=False))
    starts = [episode.observation["vector"][0, 0] for episode in result.episodes]
    tests, explored = [starts[i] for i in range(12) if i % 3 < 2], starts[2::3]
    assert tests == tests[:2] * MEMBERS and tests[0] != tests[1]
    assert len({*explored, *tests}) == MEMBERS + 2
    quiet = play(population(evolution=False), noise=0.0)
    for index, (noisy, plain) in enumerate(zip(result.episodes, quiet.episodes, strict=True)):
        same = np.array_equal(noisy.action[0], plain.action[0])
        assert same == (index % 3 < 2)
        assert (np.abs(noisy.action) <= 1).all()
    assert result.fitness == quiet.fitness


def test_another_generation_meets_other_episodes() -> None:
    first, second = (play(population(), generation=number).episodes[0] for number in (1, 2))
    assert first.observation["vector"][0, 0] != second.observation["vector"][0, 0]


def test_a_group_plays_bit_for_bit_what_it_plays_among_all() -> None:
    whole, config = members(), population(evolution=False)
    group = Members(Sizes(2, 1, HIDDEN), 2, torch.device("cpu"))
    group.load_rows(0, whole.rows(2, 4))
    among_all, alone = play(config, who=whole), play(config, first=2, who=group)
    assert_same(alone, RolloutResult(among_all.episodes[6:], among_all.fitness[2:], among_all.lengths[6:]))


def test_an_episode_whose_world_fails_is_played_again_from_its_seed() -> None:
    unbroken = play(population())
    Walk.failures_left = 2
    assert_same(play(population()), unbroken)
    assert Walk.failures_left == 0


def test_too_many_failures_are_a_crash() -> None:
    rollouts = rollouts_of(population(), env=env_of(max_restarts=1))
    Walk.failures_left = 2
    with pytest.raises(EnvironmentCrashed, match="broken"):
        rollouts.play(members(), 0, lambda: False)
    rollouts.close()


def test_a_generation_can_be_abandoned_and_played_later() -> None:
    rollouts = rollouts_of(population())
    asked = iter([False, False, False, True])
    assert rollouts.play(members(), 1, lambda: next(asked)) is None
    result = rollouts.play(members(), 1, lambda: False)
    rollouts.close()
    assert result is not None
    assert_same(result, play(population()))


def test_an_episode_without_an_end_is_refused() -> None:
    with pytest.raises(UserError, match=r"Set env\.time_limit=1000"):
        rollouts_of(population(), env=env_of("Endless-v0"))


def test_returned_episodes_are_not_overwritten() -> None:
    rollouts = rollouts_of(population())
    first = rollouts.play(members(), 1, lambda: False)
    assert first is not None
    kept = first.episodes[0].observation["vector"].copy()
    rollouts.play(members(), 2, lambda: False)
    rollouts.close()
    assert np.array_equal(first.episodes[0].observation["vector"], kept)
