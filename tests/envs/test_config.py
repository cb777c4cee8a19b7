"""Requests that are refused before an environment starts, and their messages."""

import re
import sys
from pathlib import Path
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
        ("Nothing/At-v0", "add its module: env.id=package:Name-v0"),
        ("", "add its module: env.id=package:Name-v0"),
        ("reverie.envs.catch:Catch-v7", "reverie.envs.catch was imported but does not register this id"),
        ("python/reverie.envs.catch.Cach-v0", "has no such class or function. Did you mean `Catch`"),
        # This would run a command.
        ("python/subprocess.getoutput-v0", "is a function outside"),
        ("python/os.system-v0", "os has no such class or function"),
        ("python/reverie.envs.vector.make_single-v0", "is a function outside the current folder"),
        ("python/..X-v0", "It is a class or function of the program that trained the run"),
        ("python/gone_before.X-v0", "It is a class or function of the program that trained the run"),
    ],
)
def test_an_unknown_id_is_refused(env_id: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"env.id={env_id} is not registered with Gymnasium.*{hint}"):
        validate_env(EnvConfig(suite=Suite.gymnasium, id=env_id))


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        ("gone_before", None, "the module gone_before is neither installed nor in the current folder."),
        ("gone_before.part", None, "the module gone_before is neither"),
        (
            "needs_engine",
            "import math\nimport no_engine",
            "importing needs_engine failed with ModuleNotFoundError: No module named 'no_engine' "
            "(needs_engine.py, line 2).",
        ),
        ("half_written", "def f(:", "importing half_written failed with SyntaxError: invalid syntax"),
        (
            "raises_at_once",
            "raise ValueError('no licence')",
            "importing raises_at_once failed with ValueError: no licence (raises_at_once.py, line 1).",
        ),
        ("gives_up", "raise SystemExit(3)", "importing gives_up failed with SystemExit: 3"),
        (
            "registers_nothing",
            "",
            "not registered with Gymnasium. registers_nothing was imported but does not register this id.",
        ),
    ],
)
def test_a_module_that_gives_no_environment_is_refused_with_its_own_error(
    module: str, text: str | None, message: str, current_folder: Path
) -> None:
    if text is not None:
        (current_folder / f"{module}.py").write_text(text)
    with pytest.raises(UserError, match=f"env.id={module}:World-v0.*{re.escape(message)}"):
        validate_env(EnvConfig(suite=Suite.gymnasium, id=f"{module}:World-v0"))


def test_a_maker_is_found_in_the_current_folder_and_what_its_module_lacks_is_named(
    current_folder: Path,
) -> None:
    (current_folder / "makers.py").write_text(
        "import gymnasium\ndef made():\n    return gymnasium.make('CartPole-v1')"
    )
    (current_folder / "needs_other.py").write_text("import no_engine")
    validate_env(EnvConfig(suite=Suite.gymnasium, id="python/makers.made-v0"))
    with pytest.raises(UserError, match=r"importing needs_other failed with .* No module named 'no_engine'"):
        validate_env(EnvConfig(suite=Suite.gymnasium, id="python/needs_other.made-v0"))


def test_a_module_of_the_current_folder_is_found_behind_all_that_is_installed(current_folder: Path) -> None:
    register = "import gymnasium\ngymnasium.register('Mine-v0', entry_point='own_world:World')"
    (current_folder / "own_world.py").write_text(register)
    # Python has a module of the same name.
    (current_folder / "wave.py").write_text("raise ValueError")
    validate_env(EnvConfig(suite=Suite.gymnasium, id="own_world:Mine-v0"))
    validate_env(EnvConfig(suite=Suite.gymnasium, id="wave:CartPole-v1"))


OWN = """
import gymnasium

class Wrap(gymnasium.Wrapper):
    pass

def not_derived(env):
    return env
"""


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("Wrap", "env.wrappers=Wrap has no module. Write env.wrappers=[module.Wrap]"),
        (
            "gone_before.Wrap",
            "env.wrappers=gone_before.Wrap: the module gone_before is neither installed",
        ),
        ("own_wraps.Warp", "env.wrappers=own_wraps.Warp: own_wraps has no Warp. Did you mean `Wrap`?"),
        ("own_wraps.not_derived", "not_derived is not a subclass of gymnasium.Wrapper. Define it"),
        (3, "env.wrappers has the invalid entry 3. Write module.Wrapper, or"),
        ({"nam": "own_wraps.Wrap"}, "env.wrappers has the invalid entry {'nam'"),
        ({"name": "own_wraps.Wrap", "kwargs": [1]}, "env.wrappers has the invalid entry {'name'"),
    ],
)
def test_what_is_no_wrapper_is_refused(entry: Any, message: str, current_folder: Path) -> None:
    (current_folder / "own_wraps.py").write_text(OWN)
    validate_env(EnvConfig(suite=Suite.gymnasium, wrappers=["own_wraps.Wrap", {"name": "own_wraps.Wrap"}]))
    with pytest.raises(UserError, match=re.escape(message)):
        validate_env(EnvConfig(suite=Suite.gymnasium, wrappers=[entry]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"suite": Suite.catch, "kwargs": {"size": 3}},
            "env.kwargs and env.wrappers need env=gymnasium, got catch",
        ),
        ({"kwargs": {"render_mode": "human"}}, "env.kwargs.render_mode is set by Reverie"),
        ({"kwargs": {"max_episode_steps": 3}}, "Set env.time_limit"),
        ({"kwargs": 3}, "env.kwargs must be a mapping, e.g. env.kwargs.size=8, got 3"),
    ],
)
def test_arguments_that_would_not_be_read_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        validate_env(EnvConfig(**{"suite": Suite.gymnasium, **settings}))


@pytest.fixture
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in an empty folder from which scripts cannot import anything yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    return tmp_path


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
        ("image_size", -4),
        ("image_size", 63),
        ("image_size", 272),
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
