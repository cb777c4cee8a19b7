"""The configuration is resolved before a run starts, and impossible combinations are refused."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import DictConfig

from reverie.buffers import ReplayConfig, ReplayStorage
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig, DreamerTraining
from reverie.config.population import PopulationTrainConfig
from reverie.config.resolve import multiplies_bfloat16, typed
from reverie.config.saved import read_config
from reverie.config.schema import Compile, Device, Precision, TrainConfig, actual_device, leaves
from reverie.envs import EnvConfig
from reverie.models import ModelConfig
from reverie.utils.errors import UserError
from reverie.workflows.world_models import ControllerConfig, WorldModelConfig
from reverie.workflows.world_models.config import LOSS_SWITCHES, Objective

OFF: dict[str, bool] = dict.fromkeys(LOSS_SWITCHES, False)
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def composed(*overrides: str) -> DictConfig:
    [job] = compose_jobs(overrides)
    return job


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("dreamer_pendulum/seed_1", DreamerTrainConfig), ("population/pendulum/seed_1", PopulationTrainConfig)],
)
def test_a_configuration_of_a_result_is_read_with_its_values(folder: str, kind: type[TrainConfig]) -> None:
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
        assert config.training.max_updates_per_step == text["training"]["max_updates_per_step"]
    if isinstance(config, PopulationTrainConfig):
        assert config.td3.tau == text["td3"]["tau"]


def test_a_workflow_has_only_the_settings_that_it_reads() -> None:
    population = composed("experiment=erl_pendulum")
    assert not {"model", "world_model", "controller", "optimizer"} & set(population)
    assert "num_envs" not in population.env and "store_latents" not in population.buffer
    dreamer = composed("experiment=dreamer_catch")
    assert not {"population", "td3", "engine", "ray"} & set(dreamer)
    assert "generations" not in dreamer.training


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("experiment=dreamer_ataripong", "env.time_limit=1000"),
            "env.time_limit has no effect with env=atari. Set env.max_episode_frames, or omit it.",
        ),
        (
            ("experiment=dreamer_catch", "env.max_episode_frames=9"),
            "env.max_episode_frames has no effect with env=catch. Set env.time_limit, or omit it.",
        ),
        (("env=catch", "env.game=pong"), "env.game has no effect with env=catch. Set env=atari, or omit it."),
        (("env=catch", "env.task=a_b"), "env.task has no effect with env=catch. Set env=dmc, or omit it."),
        (("env=dmc", "env.id=A-v0"), "env.id has no effect with env=dmc. Set env=gymnasium, or omit it."),
        (("env.vectorization=async",), "env.vectorization has no effect with env=atari. Set env=gymnasium,"),
        (
            ("experiment=erl_pendulum", "ray.workers=4"),
            "ray.workers has no effect with engine=local. Set engine=ray, or omit it.",
        ),
        (
            ("collect.steps=4",),
            "collect.steps has no effect with collect.collectors=0. Set collect.collectors, or omit it.",
        ),
        (
            ("buffer.store_latents=false", "buffer.latent_every=4"),
            "buffer.latent_every has no effect with buffer.store_latents=false. Set buffer.store_latents",
        ),
        (("ray.workers=4",), "ray.workers is a setting of workflow=population"),
    ],
)
def test_a_typed_setting_without_an_effect_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        compose_jobs(overrides)


def test_a_typed_setting_needs_an_effect_in_one_job_of_a_sweep() -> None:
    jobs = compose_jobs(["env=catch,dmc", "env.task=walker_run", "env.time_limit=9"], multirun=True)
    assert [job.env.task for job in jobs] == ["walker_run"] * 2
    with pytest.raises(UserError, match=r"^env.game has no effect with env=catch. Set env=atari"):
        compose_jobs(["env=catch,dmc", "env.game=pong,boxing"], multirun=True)


def test_a_value_chooses_the_workflow_as_its_group_does(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - /env/gymnasium\nworkflow: population\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    [job] = compose_jobs(["experiment=mine", "device=cpu", "td3.hidden_units=32"], config_dir=str(tmp_path))
    assert typed(job, PopulationTrainConfig).td3.hidden_units == 32


@pytest.mark.parametrize("text", ["2026_11_30", "1.10", "1e3", "true", "nan"])
def test_text_that_looks_like_a_number_stays_text(text: str) -> None:
    [job] = compose_jobs(["env=catch", f"name={text}", f"run_dir={text}"])
    assert (job.name, job.run_dir) == (text, text)


@pytest.mark.parametrize("name", ["cfg Ü", "a=1", "b(2)", "c,d"])
def test_a_folder_of_files_may_have_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name / "experiment").mkdir(parents=True)
    text = "# @package _global_\ndefaults:\n  - /env/catch\nname: mine\n"
    (tmp_path / name / "experiment" / "mine.yaml").write_text(text)
    [job] = compose_jobs(["experiment=mine"], config_dir=str(tmp_path / name))
    assert job.name == "mine"


def test_auto_is_decided_before_the_run_starts() -> None:
    config = typed(composed("device=auto", "precision=auto"))
    has_cuda = torch.cuda.is_available()
    assert config.device is (Device.cuda if has_cuda else Device.cpu)
    expected = Precision.bfloat16 if multiplies_bfloat16(config.device) else Precision.float32
    assert config.precision is expected


def test_bfloat16_is_for_processors_that_multiply_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("avx512_bf16", "amx_bf16"):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda name=name: {name: True, "avx2": True})
        assert typed(composed("device=cpu", "precision=auto")).precision is Precision.bfloat16
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False, "avx512_f": True})
    assert typed(composed("device=cpu", "precision=auto")).precision is Precision.float32
    with pytest.raises(UserError, match=r"precision=bfloat16 is not .* this device=cpu, only float32\. Set"):
        typed(composed("device=cpu", "precision=bfloat16"))


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
        ({"name": "a/b"}, "name must be a valid folder name that does not start with a dot, got 'a/b'"),
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
            "training.train_ratio=66560 needs 65 updates .* Set training.max_updates_per_step=65 or lower",
        ),
        (
            {"controller": ControllerConfig(imagine_last=65)},
            "controller.imagine_last=65 exceeds .*sequence_length=64. Set .*=64 or less",
        ),
        (
            {"buffer": ReplayConfig(storage=ReplayStorage.cuda)},
            "buffer.storage=cuda needs device=cuda, got device=cpu. Set buffer.storage=ram",
        ),
        (
            {"training": DreamerTraining(warmup_steps=9), "world_model": WorldModelConfig(losses=OFF)},
            "training.warmup_steps=9 trains only the world model, but .* Set training.warmup_steps=0",
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
        # Compiles only acting.
        (("training.train_ratio=0.001", "env.num_envs=1"), Compile.inductor),
        (("training.train_ratio=0.001", "env.num_envs=8"), Compile.none),
        (("compile=none",), Compile.none),
    ],
)
def test_compiling_pays_for_a_long_run_on_a_cpu_and_can_be_asked_for(
    overrides: tuple[str, ...], decided: Compile
) -> None:
    assert typed(composed("device=cpu", *overrides)).compile is decided


@pytest.mark.parametrize(
    ("steps", "decided"), [(400_000, Compile.inductor), (10_000, Compile.graph)], ids=["long", "short"]
)
def test_updates_on_a_gpu_are_captured_and_in_a_long_run_compiled_too(steps: int, decided: Compile) -> None:
    job = composed("device=cuda", f"training.total_timesteps={steps}")
    assert typed(job, must_run_here=False).compile is decided


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused_by_its_key(value: float) -> None:
    with pytest.raises(UserError, match=r"training\.train_ratio must be a finite number"):
        replace(RUN, training=DreamerTraining(train_ratio=value))


@pytest.mark.parametrize(
    ("key", "limit", "text"),
    [
        ("total_timesteps", 1, "at least 1"),
        ("batch_size", 1, "at least 1"),
        ("sequence_length", 2, r"in \[2, 1024\]"),
        ("warmup_steps", 0, "at least 0"),
    ],
)
def test_a_training_setting_below_its_limit_is_refused(key: str, limit: int, text: str) -> None:
    with pytest.raises(UserError, match=f"training.{key} must be {text}, got {limit - 1}"):
        replace(RUN.training, **{key: limit - 1})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_is_refused_where_there_is_none() -> None:
    assert actual_device(Device.auto) is Device.cpu
    with pytest.raises(UserError, match="device=cuda was requested, but torch finds no CUDA device"):
        typed(composed("device=cuda"))


@pytest.mark.parametrize("size", ["model.units=2000000000", "model.actor_layers=101"])
def test_a_size_that_no_tensor_can_have_is_refused_before_it_is_computed_with(size: str) -> None:
    with pytest.raises(UserError, match="must be at most"):
        typed(composed("experiment=dreamer_catch", size))


def test_a_choice_given_as_text_from_python_is_the_member_it_names() -> None:
    assert WorldModelConfig(objective="barlow") == WorldModelConfig(objective=Objective.barlow)  # pyright: ignore[reportArgumentType]
    assert ReplayConfig(storage="mmap").storage is ReplayStorage.mmap  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        UserError, match=r"world_model.objective=barlo is not one of .* Did you mean `barlow`"
    ):
        WorldModelConfig(objective="barlo")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"buffer\.storage=None is not one of ram, mmap, cuda"):
        ReplayConfig(storage=None)  # pyright: ignore[reportArgumentType]
