"""The banner before a run is correct and complete."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTraining
from reverie.config.presets import device_notice
from reverie.config.resolve import typed
from reverie.config.schema import TrainConfig
from reverie.models import ModelConfig
from reverie.orchestration.orchestrator import AnyParts
from reverie.orchestration.recipes import recipe_of
from reverie.orchestration.run import start_banner
from reverie.utils.timestep import ActionSpec, ArraySpec, EnvSpec

PONG = EnvSpec(
    name="atari/pong",
    observation={"image": ArraySpec((64, 64, 3), np.dtype(np.uint8))},
    action=ActionSpec(6, is_discrete=True),
    num_envs=4,
    action_repeat=4,
)

PONG_100K = ("experiment=dreamer_ataripong100k", "env.game=pong")


def pong_100k(*overrides: str) -> TrainConfig:
    [job] = compose_jobs([*PONG_100K, "device=cpu", "run_dir=runs/a", *overrides])
    return typed(job)


def banner_of(
    config: TrainConfig, env: EnvSpec = PONG, parameters: int = 1, replay_bytes: int = 1
) -> list[str]:
    """Return the banner of a run with components that only have their sizes."""
    parts = SimpleNamespace(
        environment=SimpleNamespace(spec=env),
        replay=SimpleNamespace(nbytes=lambda: replay_bytes),
        workflow=SimpleNamespace(num_parameters=parameters),
    )
    return start_banner(config, recipe_of(config), cast(AnyParts, parts))


def updates(config: TrainConfig) -> str:
    lines = banner_of(config)
    [line] = [line for line in lines if line.startswith("updates")]
    return line.removeprefix("updates").strip()


def test_the_banner_says_in_words_and_units_what_will_run() -> None:
    config = pong_100k("precision=float32")
    assert banner_of(config, PONG, 686_456, 3 * 2**29) == [
        "run          dreamer_ataripong100k (seed 0)",
        "environment  atari/pong, 4 environments, 4 frames per agent step",
        "observation  image uint8 64x64x3",
        "action       one of 6",
        "device       cpu (precision=float32, compile=inductor)",
        "model        small, 686,456 parameters",
        "replay       100,000 records (1.50 GiB in ram)",
        "length       100,000 agent steps (400,000 frames)",
        "updates      1 update per 4 agent steps (16 frames), 24,729 updates in total, from step 1,088",
        "batch        8 windows of 16 steps (128 trained steps per update)",
        "folder       runs/a",
    ]


def test_what_was_converted_is_part_of_the_banner() -> None:
    converted = replace(PONG, notices=("`a` is an image", "`b` too"))
    assert "observation  image uint8 64x64x3; `a` is an image; `b` too" in banner_of(pong_100k(), converted)


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (ActionSpec(1, is_discrete=False), "action       1 number in [-1, 1]"),
        (ActionSpec(3, is_discrete=False), "action       3 numbers in [-1, 1]"),
        (ActionSpec(5, is_discrete=True, parts=(2, 3)), "action       one of 2 and one of 3"),
    ],
)
def test_the_banner_shows_actions_and_each_observation(action: ActionSpec, line: str) -> None:
    parts = {"map": ArraySpec((64, 64, 1), np.dtype(np.uint8)), "speed": ArraySpec((2,))}
    env, config = replace(PONG, observation=parts, action=action), pong_100k()
    lines = banner_of(config, env)
    assert line in lines and "observation  map uint8 64x64x1, speed float32 2" in lines


def test_no_count_of_one_is_in_the_plural() -> None:
    config = pong_100k(
        "training.total_timesteps=1",
        "training.batch_size=1",
        "training.warmup_steps=1",
        "env.num_envs=1",
        "env.action_repeat=1",
    )
    lines = banner_of(config, replace(PONG, num_envs=1, action_repeat=1))
    assert re.findall(r"(?<![\d.,])1 (?:\w+ )?\w+s\b", "\n".join(lines)) == []


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        (("env=gymnasium", "env.id=Acrobot-v1"), "dreamer_Acrobot-v1"),
        (("env=gymnasium", "env.id=module:ALE/Breakout-v5"), "dreamer_Breakout-v5"),
        (("env=atari", "env.game=boxing"), "dreamer_boxing"),
        (("env=catch",), "dreamer_catch"),
        (("env=catch", "name=mine"), "mine"),
    ],
)
def test_a_run_without_an_experiment_is_named_after_its_environment(
    environment: tuple[str, ...], name: str
) -> None:
    [job] = compose_jobs([*environment, "device=cpu"])
    assert typed(job).name == name


def test_a_warm_up_is_part_of_the_banner() -> None:
    lines = banner_of(pong_100k("training.warmup_steps=25000"))
    assert "warm-up      world model only for the first 25,000 agent steps" in lines


def test_a_ratio_of_one_update_per_step_is_in_the_singular() -> None:
    config = pong_100k("training.train_ratio=128")
    assert updates(config) == "1 update per agent step (4 frames), 98,913 updates in total, from step 1,088"


def test_a_ratio_over_one_update_per_step_counts_updates() -> None:
    config = pong_100k("training.train_ratio=256")
    assert updates(config) == "2 updates per agent step (4 frames), 197,825 updates in total, from step 1,088"


def test_a_run_that_ends_before_learning_starts_makes_no_update() -> None:
    config = pong_100k("training.total_timesteps=1000")
    assert ", 0 updates in total" in updates(config)
    at_start = replace(config, training=DreamerTraining(total_timesteps=1088, learning_starts=1088))
    assert ", 1 update in total" in updates(at_start)


def test_the_notice_names_what_the_device_chose_and_how_to_choose_otherwise() -> None:
    [job] = compose_jobs([*PONG_100K, "device=cpu"])
    assert device_notice(job) == [
        "device=cpu: chose model=small, env.num_envs=4, training.batch_size=8, "
        "training.checkpoint_interval=5000, training.train_ratio=32, training.sequence_length=16, "
        "training.log_interval=500, world_model.decoder_scale=200, optimizer.learning_rate=0.001, "
        "optimizer.warmup_updates=200 (override any, e.g. model=size12m)"
    ]


def test_the_notice_on_cuda_names_the_choices_of_cuda() -> None:
    [job] = compose_jobs([*PONG_100K, "device=cuda"])
    [line] = device_notice(job)
    assert line.startswith("device=cuda: chose model=size12m, env.num_envs=1, ")
    assert line.endswith("(override any, e.g. model=size25m)")


def test_what_the_user_chose_was_not_chosen_by_the_device() -> None:
    [job] = compose_jobs([*PONG_100K, "device=cpu", "model=size25m", "training.batch_size=4"])
    [line] = device_notice(job)
    assert "training.batch_size" not in line and "model=" not in line
    assert line.endswith("(override any with key=value)")


def test_an_experiment_without_device_values_has_no_notice() -> None:
    [job] = compose_jobs(["experiment=dreamer_catch", "device=cpu"])
    assert device_notice(job) == []


def test_a_model_is_named_by_its_sizes_alone() -> None:
    assert (
        recipe_of(pong_100k("model=size12m", "model.strided=true")).model_name(
            pong_100k("model=size12m", "model.strided=true")
        )
        == "size12m"
    )
    assert (
        recipe_of(replace(pong_100k(), model=ModelConfig(units=100))).model_name(
            replace(pong_100k(), model=ModelConfig(units=100))
        )
        == "own size"
    )
