"""Each experiment composes to its documented numbers, and choices override its values."""

import functools
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.overrides import FREE
from reverie.config.resolve import GROUPS, multiplies_bfloat16, typed
from reverie.config.schema import Device, Precision, TrainConfig, WorkflowName, leaves
from reverie.config.workflow import AnyTrainConfig, in_own_schema
from reverie.envs import Suite
from reverie.utils.errors import UserError

from .test_config import composed


def values(config: TrainConfig, *keys: str) -> list[Any]:
    settings = dict(leaves(config))
    return [settings[key] for key in keys]


LENGTH = (
    "training.total_timesteps",
    "training.train_ratio",
    "training.batch_size",
    "training.sequence_length",
    "env.num_envs",
    "buffer.capacity",
    "model.units",
    "model.deter",
    "model.classes",
    "model.strided",
)


@pytest.mark.parametrize(
    ("experiment", "suite", "expected"),
    [
        ("dreamer_ataripong", Suite.atari, [200_000, 32.0, 8, 16, 8, 200_000, 64, 512, 8, True]),
        ("dreamer_ataripong100k", Suite.atari, [100_000, 32.0, 8, 16, 4, 100_000, 64, 512, 8, True]),
        ("dreamer_incident", Suite.atari, [100_000, 2.0, 8, 50, 8, 50_000, 64, 512, 8, True]),
        ("fast_atari100k", Suite.atari, [100_000, 64.0, 8, 16, 8, 110_000, 64, 512, 8, True]),
    ],
)
def test_an_atari_experiment_is_small_on_a_cpu(experiment: str, suite: Suite, expected: list[Any]) -> None:
    config = typed(composed(f"experiment={experiment}", "device=cpu"))
    assert config.env.suite is suite
    assert values(config, *LENGTH) == expected
    assert config.precision is (Precision.bfloat16 if multiplies_bfloat16(Device.cpu) else Precision.float32)


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        ("dreamer_ataripong", [400_000, 128.0, 64, 16, 16, 400_000, 64, 512, 4, True]),
        ("dreamer_ataripong100k", [100_000, 1024.0, 16, 64, 1, 100_000, 256, 2048, 16, False]),
        ("dreamer_incident", [100_000, 256.0, 16, 50, 1, 50_000, 256, 2048, 16, False]),
    ],
)
def test_an_atari_experiment_is_larger_on_cuda(experiment: str, expected: list[Any]) -> None:
    job = composed(f"experiment={experiment}", "device=cuda")
    assert [OmegaConf.select(job, key) for key in LENGTH] == expected


@pytest.mark.parametrize(
    ("experiment", "suite", "env_id"),
    [
        ("dreamer_catch", Suite.catch, None),
        ("dreamer_cartpole", Suite.gymnasium, "CartPole-v1"),
        ("dreamer_pendulum", Suite.gymnasium, "Pendulum-v1"),
    ],
)
def test_a_small_experiment_is_the_same_on_every_device(
    experiment: str, suite: Suite, env_id: str | None
) -> None:
    on_cpu, on_cuda = (composed(f"experiment={experiment}", f"device={name}") for name in ("cpu", "cuda"))
    config = typed(on_cpu)
    assert config.name == experiment
    assert config.env.suite is suite
    assert env_id in (None, config.env.id)
    on_cuda.device = on_cpu.device
    assert OmegaConf.to_container(on_cuda, resolve=True) == OmegaConf.to_container(on_cpu, resolve=True)


def test_the_incident_trains_only_the_world_model_for_25000_steps() -> None:
    config = typed(composed("experiment=dreamer_incident", "device=cpu"), DreamerTrainConfig)
    assert config.training.warmup_steps == 25_000


def test_the_run_of_a_game_is_named_after_the_game() -> None:
    config = typed(composed("experiment=paper_atari100k", "env.game=boxing", "device=cpu"))
    assert (config.name, config.env.game) == ("paper_atari100k_boxing", "boxing")


def test_pong_is_what_runs_without_a_choice() -> None:
    assert typed(composed("device=cpu")).name == "dreamer_ataripong"


def test_atari_100k_keeps_the_constants_of_the_reference_code() -> None:
    config = typed(composed("experiment=paper_atari100k", "device=cpu"))
    assert values(
        config,
        "world_model.kl.dynamics_scale",
        "world_model.kl.representation_scale",
        "world_model.kl.free_nats",
        "controller.horizon",
        "controller.discount_horizon",
        "controller.return_lambda",
        "controller.entropy_scale",
        "training.learning_starts",
        "env.noop_max",
        "env.sticky_actions",
    ) == [1.0, 0.1, 1.0, 15, 333.0, 0.95, 3e-4, 1088, 30, 0.0]


def test_fast_atari100k_plays_by_the_protocol_of_the_reference_code() -> None:
    """`env.atari100k` in configs.yaml of danijar/dreamerv3 at e3f0224, and defaults of its wrapper.

    tests/envs/test_atari.py plays by what no setting changes, such as lives and RGB.
    """
    config = typed(composed("experiment=fast_atari100k", "env.game=boxing", "device=cpu"), DreamerTrainConfig)
    assert (config.name, config.env.game) == ("fast_atari100k_boxing", "boxing")
    protocol = {
        "env.suite": Suite.atari,
        "env.action_repeat": 4,
        "env.image_size": 64,
        "env.noop_max": 30,
        "env.sticky_actions": 0.0,
        "env.full_action_space": False,
        "env.max_episode_frames": 108_000,
        "training.total_timesteps": 100_000,
    }
    assert dict(zip(protocol, values(config, *protocol), strict=True)) == protocol
    assert config.training.total_timesteps * config.env.action_repeat == 400_000
    assert config.training.planned_updates == 49_457


def test_fast_atari100k_has_the_same_settings_for_every_game_and_device() -> None:
    pong, freeway = (
        composed("experiment=fast_atari100k", f"env.game={game}", f"device={device}")
        for game, device in (("pong", "cpu"), ("freeway", "cuda"))
    )
    assert (freeway.env.game, freeway.device) == ("freeway", Device.cuda)
    freeway.name, freeway.env.game, freeway.device = pong.name, pong.env.game, pong.device
    assert OmegaConf.to_container(freeway, resolve=True) == OmegaConf.to_container(pong, resolve=True)


@pytest.mark.parametrize(
    "name", ["size1m", "size12m", "size25m", "size50m", "size100m", "size200m", "size400m"]
)
def test_every_size_follows_the_rule_of_the_paper(name: str) -> None:
    model = typed(composed(f"model={name}", "device=cpu"), DreamerTrainConfig).model
    assert (model.deter, model.hidden) == (8 * model.units, model.units)
    assert (model.depth, model.classes, model.stoch) == (model.units // 16, model.units // 16, 32)


def test_every_file_of_a_group_composes() -> None:
    for group in resources.files("reverie.configs").iterdir():
        for file in group.iterdir() if group.is_dir() and "__" not in group.name else []:
            choice = f"{group.name}={file.name.removesuffix('.yaml')}"
            tested_above = group.name == "experiment" or "size" in file.name
            # This choice needs a GPU.
            if not tested_above and choice != "buffer=cuda":
                job = composed(choice, "device=cpu", "training.learning_starts=2000")
                assert typed(job).device is Device.cpu, choice


FILES = {
    folder.name: sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if ".yaml" in file.name)
    for folder in resources.files("reverie.configs").iterdir()
    if folder.is_dir() and "__" not in folder.name
}
EXPERIMENTS = FILES.pop("experiment")


def stated(group: str, choice: str) -> DictConfig:
    """Return all values that a file of a group sets, including its defaults, read without Hydra."""
    own = yaml.safe_load(resources.files("reverie.configs").joinpath(group, f"{choice}.yaml").read_text())
    result = OmegaConf.structured(AnyTrainConfig)
    for name in own.pop("defaults"):
        if name != f"/{group}_schema":
            result = stated(group, name)
    merged = OmegaConf.merge(result, own if group == "workflow" else {group: own})
    assert isinstance(merged, DictConfig)
    return merged


@functools.cache
def stated_in(workflow: WorkflowName, group: str, choice: str) -> DictConfig:
    """Return the values of a file in sections that the workflow reads. Tests must not change it."""
    expected = stated(group, choice)
    expected.workflow = workflow
    return in_own_schema(expected)


def assert_whole(job: DictConfig, choices: dict[str, str]) -> None:
    for group, choice in choices.items():
        expected = stated_in(job.workflow, group, choice)
        for section in GROUPS[group]:
            if section in job and section != "workflow":
                assert job[section] == expected[section], f"{group}={choice}"


def of_one_workflow(choices: dict[str, str]) -> dict[str, str]:
    """Return the choices that a run can request."""
    return {
        name: each for name, each in choices.items() if (name, choices["workflow"]) != ("model", "population")
    }


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_what_the_command_line_chooses_takes_the_place_of_all_that_an_experiment_says(
    experiment: str,
) -> None:
    for end in (0, -1):
        choices = of_one_workflow({group: names[end] for group, names in FILES.items()})
        typed_choices = [f"{group}={choice}" for group, choice in choices.items()]
        assert_whole(composed(f"experiment={experiment}", *typed_choices), choices)


def test_no_choice_leaves_a_value_of_an_experiment_that_sets_them_all(tmp_path: Path) -> None:
    hostile = OmegaConf.structured(AnyTrainConfig)
    sections = [section for group in GROUPS.values() for section in group]
    for key, value in leaves(AnyTrainConfig()):
        if key.split(".")[0] in sections:
            is_free = key == FREE
            OmegaConf.update(hostile, f"{key}.size" if is_free else key, 3 if is_free else another(value))
    (tmp_path / "experiment").mkdir()
    text = OmegaConf.to_yaml(OmegaConf.masked_copy(hostile, sections))
    (tmp_path / "experiment" / "hostile.yaml").write_text(f"# @package _global_\n{text}")
    for turn in range(max(map(len, FILES.values()))):
        choices = of_one_workflow({group: names[turn % len(names)] for group, names in FILES.items()})
        typed_choices = [f"{group}={choice}" for group, choice in choices.items()]
        [job] = compose_jobs(["experiment=hostile", *typed_choices], config_dir=str(tmp_path))
        assert_whole(job, choices)


def another(value: Any) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, Enum):
        return next(member for member in type(value) if member is not value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return [*value, "another"]
    return "another" if isinstance(value, str) else 3 if value is None else value + 1


def test_a_choice_changes_its_group_alone_and_a_single_setting_is_over_it() -> None:
    alone = composed("experiment=dreamer_catch")
    chosen = composed("model.units=128", "experiment=dreamer_catch", "model=size25m")
    assert (chosen.model.units, chosen.model.deter, chosen.model.strided) == (128, 3072, False)
    chosen.model = alone.model
    assert chosen == alone


def test_an_environment_without_an_experiment_inherits_no_pong_settings() -> None:
    own = typed(composed("env=gymnasium", "env.id=Acrobot-v1", "device=cpu"))
    assert (own.name, own.env.id, own.env.num_envs) == ("dreamer_Acrobot-v1", "Acrobot-v1", 1)
    assert values(own, "world_model.decoder_scale", "optimizer.learning_rate") == [1.0, 4e-5]
    assert composed("env=catch", "experiment=dreamer_ataripong").name == "dreamer_ataripong"


def test_an_experiment_that_chooses_for_the_command_line_is_refused_with_the_right_form(
    tmp_path: Path,
) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /model: size1m\nmodel:\n  deter: 256\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=r"`override /model`, which would .* Write `/model/<choice>` instead"):
        compose_jobs(["experiment=mine"], config_dir=str(tmp_path))


def own_and_before(group: str, choice: str) -> tuple[dict[str, Any], DictConfig]:
    """Return the values that a file sets, and the values without it, read without Hydra."""
    own = yaml.safe_load(resources.files("reverie.configs").joinpath(group, f"{choice}.yaml").read_text())
    before = OmegaConf.structured(AnyTrainConfig)
    for name in own.pop("defaults"):
        if not name.endswith("_schema"):
            base_group, _, base = name.strip("/").rpartition("/")
            first, stated_before = own_and_before(base_group or group, base)
            before = OmegaConf.merge(before, stated_before, first)
    own = own if group in ("workflow", "experiment") else {group: own}
    assert isinstance(before, DictConfig)
    return own, before


def test_a_file_says_only_what_it_changes() -> None:
    root = yaml.safe_load(resources.files("reverie.configs").joinpath("train.yaml").read_text())
    assert set(root) == {"defaults", "hydra"}
    for group, choice in [(g, c) for g, names in {**FILES, "experiment": EXPERIMENTS}.items() for c in names]:
        own, before = own_and_before(group, choice)
        for key, value in leaves(own):
            assert value != plain(before, key), (choice, key)


def plain(config: DictConfig, key: str) -> Any:
    """Return a value as it is in the YAML file, without interpolation."""
    value: Any = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    for name in key.split("."):
        value = value[name]
    return value
