"""A small workflow with batches and arrivals."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reverie.buffers import SampledPositions, SequenceBatch, StoredLatent
from reverie.models import OptimizerConfig
from reverie.utils.ranks import ALONE, Ranks
from reverie.utils.timestep import ActionSpec, ArraySpec, EnvSpec, TimeStep
from reverie.workflows.world_models import ControllerConfig, DreamerConfig, DreamerWorkflow, WorldModelConfig
from reverie.workflows.world_models.config import KLConfig

from ..models.tiny import CPU, TINY

IMAGE = {"image": ArraySpec((64, 64, 3), np.dtype(np.uint8))}
VECTOR = {"vector": ArraySpec((5,), np.dtype(np.float32))}
ACTIONS, HORIZON = 6, 3


def env_spec(observation: dict[str, ArraySpec], actions: int = ACTIONS, is_discrete: bool = True) -> EnvSpec:
    return EnvSpec("tiny", observation, ActionSpec(actions, is_discrete), num_envs=2, action_repeat=1)


def tiny_workflow(
    observation: dict[str, ArraySpec] | None = None,
    is_discrete: bool = True,
    free_nats: float = 0.0,
    switched_off: Iterable[str] = (),
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    is_perturbed: bool = True,
    rates: dict[str, Any] | None = None,
    world_model: dict[str, Any] | None = None,
    ranks: Ranks = ALONE,
) -> DreamerWorkflow:
    """Return a workflow without warm-up and without free nats, so that both KL losses have gradients."""
    config = DreamerConfig(
        model=TINY,
        world_model=WorldModelConfig(
            kl=KLConfig(free_nats=free_nats),
            losses={name: False for name in switched_off},
            **(world_model or {}),
        ),
        controller=ControllerConfig(horizon=HORIZON),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_updates=0, **(rates or {})),
    )
    workflow = DreamerWorkflow(
        env_spec(observation or VECTOR, is_discrete=is_discrete), config, device, dtype, ranks=ranks
    )
    if is_perturbed:
        for parameter in parameters(workflow).values():
            parameter.data.add_(0.2 * torch.randn(parameter.shape).to(device))
    return workflow


def parameters(workflow: DreamerWorkflow) -> dict[str, nn.Parameter]:
    """Return all parameters by name, including the slow critic's."""
    modules = nn.ModuleDict({"world_model": workflow.world_model, "controller": workflow.controller})
    return dict(modules.named_parameters())


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(module: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}


def random_observation(observation: dict[str, ArraySpec], *lead: int) -> dict[str, Tensor]:
    return {
        key: torch.randint(256, (*lead, *spec.shape), dtype=torch.uint8)
        if spec.is_image
        else 3 * torch.randn(*lead, *spec.shape)
        for key, spec in observation.items()
    }


def make_batch(
    workflow: DreamerWorkflow,
    batch: int = 3,
    time: int = 5,
    has_context: bool = True,
    has_borders: bool = True,
) -> SequenceBatch:
    """Return random windows of `time` + 1 columns. Row 0 has a terminal, row 1 a truncation."""
    env, model = workflow.env, workflow.config.model
    action = torch.randn(batch, time + 1, env.action.size)
    if env.action.is_discrete:
        action = torch.nn.functional.one_hot(action.argmax(-1), env.action.size).float()
    is_first, is_last, is_terminal = (torch.zeros(batch, time + 1, dtype=torch.bool) for _ in range(3))
    if has_borders and time >= 4:
        is_last[:2, 2] = is_first[:2, 3] = is_terminal[0, 2] = True
    context = StoredLatent(
        torch.randn(batch, model.deter).half(),
        torch.randint(model.classes, (batch, model.stoch), dtype=torch.uint8),
    )
    return SequenceBatch(
        observation=random_observation(env.observation, batch, time + 1),
        action=action,
        reward=torch.randn(batch, time + 1),
        is_first=is_first,
        is_last=is_last,
        is_terminal=is_terminal,
        context=context if has_context else None,
        positions=SampledPositions(np.zeros(batch, np.int64), np.zeros(batch, np.int64)),
    ).to(workflow.device)


def make_arrival(workflow: DreamerWorkflow, is_first: bool = False) -> TimeStep:
    """Return random observations of the workflow's two environments."""
    observation = random_observation(workflow.env.observation, 2)
    flags = np.zeros(2, np.bool_)
    return TimeStep(
        observation={key: value.numpy() for key, value in observation.items()},
        reward=np.zeros(2, np.float32),
        is_first=np.full(2, is_first),
        is_last=flags,
        is_terminal=flags,
    )
