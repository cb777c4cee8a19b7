"""sheeprl's DreamerV3 (of the Nature paper) for Pong, built as its `main` does."""

from typing import Any

import gymnasium as gym
import hydra
import numpy as np
from lightning.fabric import Fabric
from omegaconf import OmegaConf
from sheeprl.algos.dreamer_v3_5.agent import build_agent
from sheeprl.utils.utils import dotdict

ACTIONS = 6


def compose(options: dict[str, Any], *overrides: str) -> Any:
    """Return sheeprl's own configuration of `dreamer_v3_5`. `quick` selects tiny sizes."""
    quick = [
        "algo.cnn_channels_multiplier=2",
        "algo.per_rank_batch_size=2",
        "algo.per_rank_sequence_length=8",
    ]
    with hydra.initialize_config_module("sheeprl.configs", version_base="1.3"):
        composed = hydra.compose(
            "config",
            [
                "exp=dreamer_v3_5",
                f"algo=dreamer_v3_5_{options['size']}",
                "algo.per_rank_batch_size=16",
                "algo.per_rank_sequence_length=64",
                "algo.cnn_keys.encoder=[rgb]",
                f"env.num_envs={options.get('num_envs', 1)}",
                *(quick if options["quick"] else []),
                *overrides,
            ],
        )
    return dotdict(OmegaConf.to_container(composed, resolve=True))


def build(options: dict[str, Any], cfg: Any) -> tuple[Fabric, Any]:
    """Return the fabric and (world_model, actor, critic, target_critic, player)."""
    device = options.get("device", "cpu")
    fabric = Fabric(accelerator=device, devices=1, precision=options.get("precision", "32-true"))
    fabric.seed_everything(0)
    space = gym.spaces.Dict({"rgb": gym.spaces.Box(0, 255, (3, 64, 64), np.uint8)})
    return fabric, build_agent(fabric, (ACTIONS,), False, cfg, space)


def num_parameters(*modules: Any) -> int:
    """Return the number of trained parameters."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
