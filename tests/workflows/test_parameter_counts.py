"""Exact parameter counts of the author's sizes."""

from importlib.resources import files

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from reverie.models import ModelConfig, OptimizerConfig
from reverie.utils.timestep import ActionSpec, ArraySpec, EnvSpec
from reverie.workflows.world_models import ControllerConfig, DreamerConfig, DreamerWorkflow, WorldModelConfig
from reverie.workflows.world_models.controller import Controller
from reverie.workflows.world_models.world_model import WorldModel

SIZES = ["size1m", "size12m", "size25m", "size50m", "size100m", "size200m", "size400m"]
PONG = [686_456, 10_492_616, 23_487_016, 41_646_984, 93_463_624, 165_942_536, 372_887_176]
VECTOR = [640_867, 9_738_019, 21_782_947, 38_612_003, 86_622_499, 153_769_507, 345_473_059]


def env_spec(shape: tuple[int, ...], actions: int, is_discrete: bool) -> EnvSpec:
    spec = ArraySpec(shape, np.dtype(np.uint8 if len(shape) == 3 else np.float32))
    return EnvSpec("counted", {"seen": spec}, ActionSpec(actions, is_discrete), num_envs=1, action_repeat=1)


PONG_ENV = env_spec((64, 64, 3), 6, True)
VECTOR_ENV = env_spec((24,), 6, False)
CARTPOLE_ENV = env_spec((4,), 2, True)


def read_size(name: str) -> ModelConfig:
    text = (files("reverie.configs") / "model" / f"{name}.yaml").read_text()
    values = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(values, dict)
    del values["defaults"]
    return ModelConfig(**{str(key): value for key, value in values.items()})


def build(env: EnvSpec, size: str) -> tuple[WorldModel, Controller]:
    """Return the networks without allocating their memory."""
    model = read_size(size)
    with torch.device("meta"):
        world_model = WorldModel(env, model, WorldModelConfig(), discount=0.997)
        return world_model, Controller(env.action, world_model.feature_size, model, ControllerConfig())


def count(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters() if p.requires_grad)


@pytest.mark.parametrize(("size", "expected"), list(zip(SIZES, PONG, strict=True)))
def test_counts_for_pong_equal_the_reference(size: str, expected: int) -> None:
    assert count(*build(PONG_ENV, size)) == expected


@pytest.mark.parametrize(("size", "expected"), list(zip(SIZES, VECTOR, strict=True)))
def test_counts_for_24_numbers_and_6_continuous_actions_equal_the_reference(size: str, expected: int) -> None:
    assert count(*build(VECTOR_ENV, size)) == expected


@pytest.mark.parametrize(
    ("size", "expected"), [("size1m", 637_381), ("size12m", 9_724_165), ("size25m", 21_762_181)]
)
def test_counts_for_cartpole_equal_the_reference(size: str, expected: int) -> None:
    assert count(*build(CARTPOLE_ENV, size)) == expected


def test_every_part_of_size12m_has_its_share() -> None:
    world_model, controller = build(PONG_ENV, "size12m")
    assert count(world_model.rssm) == 5_979_648
    core = world_model.rssm.core
    assert [count(x) for x in (core.deter_in, core.stoch_in, core.action_in)] == [524_800, 131_584, 2_048]
    assert core.mix_weight.numel() + core.mix_bias.numel() + count(core.mix_norm) == 2_101_248
    assert count(core.gates) == 1_579_008
    posterior = world_model.rssm.posterior_in, world_model.rssm.posterior_norm
    assert [count(*posterior), count(world_model.rssm.posterior_out)] == [786_944, 131_584]
    rounded = {
        "encoder": (world_model.encoder, 220_000, 500),
        "decoder": (world_model.decoder, 1_270_000, 5_000),
        "reward": (world_model.reward, 720_000, 5_000),
        "continue": (world_model.continuation, 660_000, 5_000),
        "actor": (controller.actor, 790_000, 5_000),
        "critic": (controller.critic, 850_000, 5_000),
    }
    for name, (module, expected, tolerance) in rounded.items():
        assert count(module) == pytest.approx(expected, abs=tolerance), name


def test_a_workflow_counts_what_it_trains_and_not_the_slow_critic() -> None:
    config = DreamerConfig(
        model=read_size("size1m"),
        world_model=WorldModelConfig(),
        controller=ControllerConfig(),
        optimizer=OptimizerConfig(),
    )
    workflow = DreamerWorkflow(PONG_ENV, config, torch.device("cpu"))
    everything = sum(p.numel() for m in (workflow.world_model, workflow.controller) for p in m.parameters())
    assert workflow.num_parameters == 686_456
    assert everything - workflow.num_parameters == sum(
        p.numel() for p in workflow.controller.critic.parameters()
    )
    assert sum(len(optimizer.parameters) for optimizer in workflow.optimizers.values()) == sum(
        p.requires_grad for m in (workflow.world_model, workflow.controller) for p in m.parameters()
    )
