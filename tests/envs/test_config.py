"""What is refused before an environment is started, and in which words."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from reverie.envs import EnvConfig, Suite, Vectorization, atari_games, make_environment, validate_env
from reverie.utils.errors import UserError


def test_an_unknown_game_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"env\.game=pnog is not one of the 104 .* Did you mean `pong`\?"):
        validate_env(EnvConfig(game="pnog"))


def test_a_game_in_camel_case_is_refused_with_its_right_name() -> None:
    with pytest.raises(UserError, match="Did you mean `ms_pacman`"):
        validate_env(EnvConfig(game="MsPacman"))


def test_roms_that_end_the_process_are_no_games() -> None:
    assert not {"combat", "joust", "maze_craze", "warlords"} & set(atari_games())


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("CartPol-v1", "Did you mean `CartPole-v1`"),
        ("CartPole", "Did you mean `CartPole-v"),
        ("Nothing/At-v0", "needs its module in front"),
        ("no_such_module:World-v0", "needs its module in front"),
        ("", "needs its module in front"),
    ],
)
def test_an_unknown_id_is_refused(env_id: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"env.id={env_id} is not registered with Gymnasium.*{hint}"):
        validate_env(EnvConfig(suite=Suite.gymnasium, id=env_id))


def test_known_names_pass() -> None:
    validate_env(EnvConfig(game="ms_pacman"))
    validate_env(EnvConfig(suite=Suite.catch))
    validate_env(EnvConfig(suite=Suite.gymnasium, id="Pendulum-v1"))


def test_only_the_name_of_the_chosen_suite_is_looked_at() -> None:
    validate_env(EnvConfig(suite=Suite.catch, game="nothing", id="nothing"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_envs", 0),
        ("action_repeat", 0),
        ("image_size", 7),
        ("noop_max", -1),
        ("max_episode_frames", 0),
        ("time_limit", 0),
        ("worker_timeout", -1.0),
        ("max_restarts", -1),
        ("sticky_actions", 1.5),
        ("sticky_actions", -0.1),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"env\.{key} .*got {value}"):
        EnvConfig(**{key: value})


def test_making_an_unknown_game_is_refused_too() -> None:
    with pytest.raises(UserError, match="Did you mean `pong`"):
        make_environment(EnvConfig(game="pongg"), 0)


def test_the_command_line_names_suite_and_vectorization_in_words() -> None:
    typed = OmegaConf.merge(OmegaConf.structured(EnvConfig), {"suite": "gymnasium", "vectorization": "async"})
    config = OmegaConf.to_object(typed)
    assert isinstance(config, EnvConfig)
    assert (config.suite, config.vectorization) == (Suite.gymnasium, Vectorization["async"])
