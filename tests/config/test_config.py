"""Every experiment composes to the numbers it promises, and impossible combinations are refused."""

from dataclasses import replace
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import DictConfig, OmegaConf

from reverie.buffers import ReplayConfig, ReplayStorage
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig, DreamerTraining
from reverie.config.population import PopulationTrainConfig
from reverie.config.resolve import GROUPS, typed
from reverie.config.saved import read_config
from reverie.config.schema import (
    Compile,
    Device,
    Precision,
    TrainConfig,
    actual_device,
    leaves,
)
from reverie.config.workflow import AnyTrainConfig, in_own_schema
from reverie.envs import EnvConfig, Suite
from reverie.models import ModelConfig
from reverie.utils.errors import UserError


def composed(*overrides: str) -> DictConfig:
    [job] = compose_jobs(overrides)
    return job


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
        ("dreamer_ataripong", Suite.atari, [100_000, 32.0, 8, 16, 4, 100_000, 64, 512, 8, True]),
        ("dreamer_atari100k", Suite.atari, [100_000, 32.0, 8, 16, 4, 100_000, 64, 512, 8, True]),
        ("dreamer_incident", Suite.atari, [100_000, 2.0, 8, 50, 8, 50_000, 64, 512, 8, True]),
    ],
)
def test_an_atari_experiment_is_small_on_a_cpu(experiment: str, suite: Suite, expected: list[Any]) -> None:
    config = typed(composed(f"experiment={experiment}", "device=cpu"))
    assert config.env.suite is suite
    assert values(config, *LENGTH) == expected
    assert config.precision is Precision.float32


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        ("dreamer_ataripong", [100_000, 1024.0, 16, 64, 1, 100_000, 256, 2048, 16, False]),
        ("dreamer_atari100k", [100_000, 256.0, 16, 64, 1, 100_000, 256, 2048, 16, False]),
        ("dreamer_incident", [100_000, 256.0, 16, 50, 1, 50_000, 256, 2048, 16, False]),
    ],
)
def test_an_atari_experiment_is_size12m_on_cuda(experiment: str, expected: list[Any]) -> None:
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
    config = typed(composed("experiment=dreamer_atari100k", "env.game=boxing", "device=cpu"))
    assert (config.name, config.env.game) == ("dreamer_atari100k_boxing", "boxing")


def test_the_flagship_keeps_the_constants_of_the_reference_code() -> None:
    config = typed(composed("device=cpu"))
    assert config.name == "dreamer_ataripong"
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
            if not tested_above and choice != "buffer=cuda":  # which needs a GPU
                assert typed(composed(choice, "device=cpu")).device is Device.cpu, choice


FILES = {
    folder.name: sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if ".yaml" in file.name)
    for folder in resources.files("reverie.configs").iterdir()
    if folder.is_dir() and "__" not in folder.name
}
EXPERIMENTS = FILES.pop("experiment")


def stated(group: str, choice: str) -> DictConfig:
    """All that a file of a group sets, read without Hydra: its own values over those it begins with."""
    own = yaml.safe_load(resources.files("reverie.configs").joinpath(group, f"{choice}.yaml").read_text())
    result = OmegaConf.structured(AnyTrainConfig)
    for name in own.pop("defaults"):
        if name != f"/{group}_schema":
            result = stated(group, name)
    merged = OmegaConf.merge(result, own if group == "workflow" else {group: own})
    assert isinstance(merged, DictConfig)
    return merged


def assert_whole(job: DictConfig, choices: dict[str, str]) -> None:
    for group, choice in choices.items():
        expected = stated(group, choice)
        expected.workflow = job.workflow  # of each section, what the run's workflow reads
        expected = in_own_schema(expected)
        for section in GROUPS[group]:
            if section in job and section != "workflow":
                assert job[section] == expected[section], f"{group}={choice}"


def of_one_workflow(choices: dict[str, str]) -> dict[str, str]:
    """Those choices that a run can be asked for."""
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
            OmegaConf.update(hostile, key, another(value))
    (tmp_path / "experiment").mkdir()
    text = OmegaConf.to_yaml(OmegaConf.masked_copy(hostile, sections))
    (tmp_path / "experiment" / "hostile.yaml").write_text(f"# @package _global_\n{text}")
    for turn in range(max(map(len, FILES.values()))):
        choices = of_one_workflow({group: names[turn % len(names)] for group, names in FILES.items()})
        typed_choices = [f"{group}={choice}" for group, choice in choices.items()]
        [job] = compose_jobs(["experiment=hostile", *typed_choices], config_dir=str(tmp_path))
        assert_whole(job, choices)


def another(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, Enum):
        return next(member for member in type(value) if member is not value)
    if isinstance(value, bool):
        return not value
    return "another" if isinstance(value, str) else 3 if value is None else value + 1


def test_a_choice_changes_its_group_alone_and_a_single_setting_is_over_it() -> None:
    alone = composed("experiment=dreamer_catch")
    chosen = composed("model.units=128", "experiment=dreamer_catch", "model=size25m")
    assert (chosen.model.units, chosen.model.deter, chosen.model.strided) == (128, 3072, False)
    chosen.model = alone.model
    assert chosen == alone


def test_whoever_chooses_an_environment_and_no_experiment_inherits_nothing_of_pong() -> None:
    own = typed(composed("env=gymnasium", "env.id=Acrobot-v1", "device=cpu"))
    assert (own.name, own.env.id, own.env.num_envs) == ("dreamer", "Acrobot-v1", 1)
    assert values(own, "world_model.decoder_scale", "optimizer.learning_rate") == [1.0, 4e-5]
    assert composed("env=catch", "experiment=dreamer_ataripong").name == "dreamer_ataripong"


def test_an_experiment_that_chooses_for_the_command_line_is_refused_with_the_right_form(
    tmp_path: Path,
) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /model: size1m\nmodel:\n  deter: 256\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=r"`override /model`, which would .* Write `/model/<choice>` there"):
        compose_jobs(["experiment=mine"], config_dir=str(tmp_path))


def own_and_before(group: str, choice: str) -> tuple[dict[str, Any], DictConfig]:
    """What a file sets, and what holds without that, read without Hydra."""
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
    """A value as YAML has it, not resolved."""
    value: Any = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    for name in key.split("."):
        value = value[name]
    return value


RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("dreamer_pendulum/seed_1", DreamerTrainConfig), ("population/pendulum/seed_1", PopulationTrainConfig)],
)
def test_a_configuration_saved_by_version_0_2_is_read(folder: str, kind: type[TrainConfig]) -> None:
    text = yaml.safe_load((RESULTS / folder / "config.yaml").read_text())
    config = typed(read_config(RESULTS / folder / "config.yaml"))
    assert type(config) is kind
    for key, value in leaves(config):
        saved: Any = text
        for name in key.split("."):
            saved = saved.get(name) if isinstance(saved, dict) else None
        if saved is not None:
            assert getattr(value, "name", value) == saved, key
    if isinstance(config, DreamerTrainConfig):
        assert config.training.max_updates_per_step == text["training"]["max_updates_owed"]
        assert config.world_model.kl.representation_scale == text["world_model"]["kl"]["rep_scale"]
    if isinstance(config, PopulationTrainConfig):
        assert config.td3.tau == text["td3"]["target_rate"]


def test_a_workflow_has_only_the_settings_that_it_reads() -> None:
    population = composed("experiment=erl_pendulum")
    assert not {"model", "world_model", "controller", "optimizer"} & set(population)
    assert "num_envs" not in population.env and "store_latents" not in population.buffer
    dreamer = composed("experiment=dreamer_catch")
    assert not {"population", "td3", "engine", "ray"} & set(dreamer)
    assert "generations" not in dreamer.training


def test_a_value_chooses_the_workflow_as_its_group_does(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - /env/gymnasium\nworkflow: population\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    [job] = compose_jobs(["experiment=mine", "device=cpu", "td3.hidden_units=32"], config_dir=str(tmp_path))
    assert typed(job, PopulationTrainConfig).td3.hidden_units == 32


def test_auto_is_decided_before_the_run_starts() -> None:
    config = typed(composed("device=auto", "precision=auto"))
    has_cuda = torch.cuda.is_available()
    assert config.device is (Device.cuda if has_cuda else Device.cpu)
    assert config.precision is not Precision.auto


def test_deciding_leaves_the_composed_configuration_as_it_was() -> None:
    job = composed()
    typed(job)
    assert job.device is Device.auto


def test_updates_per_step_is_the_ratio_over_the_steps_of_a_batch() -> None:
    assert DreamerTraining(train_ratio=1024, batch_size=16, sequence_length=64).updates_per_step == 1.0
    assert DreamerTraining(train_ratio=32, batch_size=8, sequence_length=32).updates_per_step == 0.125


def test_leaves_are_single_settings_with_dotted_keys() -> None:
    settings = dict(leaves(DreamerTrainConfig()))
    assert settings["world_model.losses.continue"] is True
    assert settings["training.batch_size"] == 16
    assert "training" not in settings


RUN = DreamerTrainConfig(device=Device.cpu, model=ModelConfig(), env=EnvConfig(), buffer=ReplayConfig())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, r"seed must be in \[0, 2\*\*32\), got -1"),
        ({"name": "a/b"}, "name must be a word that can name a folder and begins with no dot, got 'a/b'"),
        (
            {"buffer": ReplayConfig(capacity=64)},
            "training.sequence_length=64 needs windows of 65 records, but buffer.capacity=64 leaves 64 for "
            "each of env.num_envs=1. Set buffer.capacity=65 or more, or training.sequence_length=63 or less",
        ),
        (
            {"training": DreamerTraining(learning_starts=64)},
            "training.learning_starts=64 is too early: .* Set training.learning_starts=65 or more",
        ),
        (
            {"training": DreamerTraining(train_ratio=1024 * 65)},
            "training.train_ratio=66560 owes 65 updates .* Set training.max_updates_per_step=65 or lower the",
        ),
        (
            {"precision": Precision.bfloat16},
            "precision=bfloat16 is not supported on device=cpu; allowed there: float32",
        ),
        (
            {"buffer": ReplayConfig(storage=ReplayStorage.cuda)},
            "buffer.storage=cuda needs device=cuda, got device=cpu. Set buffer.storage=ram",
        ),
        ({"compile": Compile.graph}, "compile=graph needs device=cuda, got device=cpu. Set compile=none"),
    ],
)
def test_an_impossible_combination_is_refused_with_its_repair(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(RUN, **change)


def test_the_smallest_replay_that_holds_a_window_is_allowed() -> None:
    assert replace(RUN, buffer=ReplayConfig(capacity=65)).buffer.capacity == 65


@pytest.mark.parametrize(
    ("overrides", "decided"),
    [
        ((), Compile.inductor),
        (("training.total_timesteps=10000",), Compile.none),
        (("training.total_timesteps=10000", "compile=inductor"), Compile.inductor),
        (("training.train_ratio=0.001", "env.num_envs=1"), Compile.inductor),  # for acting alone
        (("training.train_ratio=0.001", "env.num_envs=2"), Compile.none),
        (("compile=none",), Compile.none),
    ],
)
def test_compiling_pays_for_a_long_run_on_a_cpu_and_can_be_asked_for(
    overrides: tuple[str, ...], decided: Compile
) -> None:
    assert typed(composed("device=cpu", *overrides)).compile is decided


def test_nothing_is_compiled_for_a_gpu_unless_asked_for() -> None:
    assert typed(composed("device=cuda"), must_run_here=False).compile is Compile.none
    with pytest.raises(UserError, match="compile=inductor needs device=cpu, got device=cuda"):
        typed(composed("device=cuda", "compile=inductor"), must_run_here=False)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused_by_its_key(value: float) -> None:
    with pytest.raises(UserError, match=r"training\.train_ratio must be a finite number"):
        replace(RUN, training=DreamerTraining(train_ratio=value))


@pytest.mark.parametrize(
    ("key", "limit"), [("total_timesteps", 1), ("batch_size", 1), ("sequence_length", 2), ("warmup_steps", 0)]
)
def test_a_training_setting_below_its_limit_is_refused(key: str, limit: int) -> None:
    with pytest.raises(UserError, match=f"training.{key} must be at least {limit}, got {limit - 1}"):
        DreamerTraining(**{key: limit - 1})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_is_refused_where_there_is_none() -> None:
    assert actual_device(Device.auto) is Device.cpu
    with pytest.raises(UserError, match="device=cuda was asked for, but torch sees no CUDA device"):
        typed(composed("device=cuda"))


@pytest.mark.parametrize("size", ["model.units=2000000000", "model.actor_layers=101"])
def test_a_size_that_no_tensor_can_have_is_refused_before_it_is_computed_with(size: str) -> None:
    with pytest.raises(UserError, match="must be at most"):
        typed(composed("experiment=dreamer_catch", size))
