"""r2dreamer's Dreamer for Pong, built from the user's checkout as its `train.py` does.

Without CUDA, two patches apply: autocast to float16 is off, so that the agent computes in float32, and memory
is not pinned. Apart from this, the agent is unmodified. On a CPU it is not compiled.
"""

import sys
from functools import partial
from typing import Any

import gymnasium as gym
import hydra
import numpy as np
import torch
from serve import commit_of
from tensordict import TensorDict

ACTIONS = 6
_SIZE1M = ("deter=512", "hidden=64", "discrete=4", "depth=4", "units=64")
"""The Nature paper's smallest size, for which r2dreamer does not have a file."""


def compose(options: dict[str, Any], *overrides: str) -> Any:
    """Return r2dreamer's own configuration for Atari. `quick` selects tiny sizes."""
    device = options.get("device", "cpu")
    is_small = options["size"] == "1M"
    size = [f"model.{pair}" for pair in _SIZE1M] if is_small else [f"model=size{options['size']}"]
    quick = ["model.depth=2", "batch_size=2", "batch_length=8"] if options["quick"] else []
    with hydra.initialize_config_dir(f"{options['checkout']}/configs", version_base=None):
        return hydra.compose(
            "configs",
            [
                "env=atari100k",
                "env.task=atari_pong",
                f"env.env_num={options.get('num_envs', 1)}",
                "env.eval_episode_num=0",
                f"device={device}",
                f"model.rep_loss={options['rep_loss']}",
                f"model.compile={device == 'cuda'}",
                *size,
                *quick,
                *overrides,
            ],
        )


def build(options: dict[str, Any], cfg: Any) -> Any:
    """Return the agent, patched if the machine lacks CUDA. The checkout is importable afterwards."""
    sys.path.insert(0, options["checkout"])
    import dreamer

    # r2dreamer's train.py uses the same setting.
    torch.set_float32_matmul_precision("high")
    if not torch.cuda.is_available():
        dreamer.autocast = partial(torch.autocast, enabled=False)
        TensorDict.pin_memory = lambda self, *_, **__: self
    torch.manual_seed(0)
    image = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    actions = gym.spaces.Box(0, 1, (ACTIONS,), np.float32)
    # r2dreamer's OneHotAction sets the same attribute.
    actions.discrete = True
    return dreamer.Dreamer(cfg.model, gym.spaces.Dict({"image": image}), actions).to(cfg.device)


def facts(options: dict[str, Any], agent: Any) -> dict[str, Any]:
    """Return the checkout's commit, with a marker for local changes, and the number of parameters."""
    parameters = sum(parameter.numel() for parameter in agent._named_params.values())
    return {"commit": commit_of(options["checkout"]), "parameters": parameters}
