"""The author's DreamerV3 for Pong, built by `make_agent` from the user's checkout of danijar/dreamerv3.

One patch is applied: `jax.jit` accepts optional arguments by position, because newer versions of JAX do not.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import elements
import jax
import numpy as np
from ruamel.yaml import YAML
from serve import BlockServer

ACTIONS = 6


class JAXServer(BlockServer):
    """Answers requests for blocks of calls, and limits XLA to `options["threads"]` on a CPU."""

    libraries = ("jax", "jaxlib", "numpy")

    def __init__(self) -> None:
        super().__init__()
        # XLA reads the size of its thread pool when JAX first computes. A flag in XLA_FLAGS would be lost,
        # because the checkout overwrites that variable.
        if self.device == "cpu":
            os.environ["NPROC"] = str(self.options["threads"])

    def peak_mb(self) -> float:
        """Return the peak memory in MB of 1e6 bytes. JAX cannot reset it on a GPU."""
        if self.device != "cuda":
            return super().peak_mb()
        return jax.local_devices()[0].memory_stats()["peak_bytes_in_use"] / 1e6


class Spaces:
    """Environment for `make_agent`, used only to read its spaces before it is closed."""

    def __init__(self, observation: dict[str, elements.Space], action: elements.Space) -> None:
        flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), elements.Space(bool))
        self.obs_space = {**observation, "reward": elements.Space(np.float32), **flags}
        self.act_space = {"action": action, "reset": elements.Space(bool)}

    def close(self) -> None:
        """Do nothing."""


def compose(options: dict[str, Any]) -> elements.Config:
    """Return the author's configuration for Atari100k. `quick` selects tiny sizes."""
    configs = YAML(typ="safe").load(Path(options["checkout"], "dreamerv3/configs.yaml").read_text())
    config = elements.Config(configs["defaults"])
    for name in ("atari100k", f"size{options['size'].lower()}", *["debug"] * options["quick"]):
        config = config.update(configs[name])
    batch_size, batch_length = (2, 8) if options["quick"] else (16, 64)
    config = config.update(
        {
            r".*\.strided": options.get("strided", False),
            "batch_size": batch_size,
            "batch_length": batch_length,
            "jax.platform": options["device"],
            "jax.compute_dtype": "bfloat16" if options["precision"] == "bf16-mixed" else "float32",
            "jax.prealloc": False,
        }
    )
    # The file lacks these keys. By default, the agent also compiles its report and traces updates 100 to 120.
    return elements.Config({**config, "jax": {**config.jax, "precompile": False, "profiler": False}})


def build(options: dict[str, Any], config: elements.Config) -> Any:
    """Return the agent. The checkout is importable afterwards."""
    sys.path.insert(0, options["checkout"])
    from dreamerv3 import main

    jax.jit = with_positions(jax.jit)
    image, action = elements.Space(np.uint8, (64, 64, 3)), elements.Space(np.int32, (), 0, ACTIONS)
    main.make_env = lambda *_, **__: Spaces({"image": image}, action)
    return main.make_agent(config)


def with_positions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that also accepts its named arguments by position."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        return function(*values[:1], **dict(zip(names[1:], values[1:], strict=False)), **named)

    return call


def batch_on_device(agent: Any, config: elements.Config) -> dict[str, Any]:
    """Return a batch of random pixels, with one step of context, on the device."""
    shape = (config.batch_size, config.batch_length + config.replay_context)
    generator = np.random.default_rng(0)
    batch = {name: np.zeros((*shape, *space.shape), space.dtype) for name, space in agent.spaces.items()}
    batch["image"] = generator.integers(256, size=batch["image"].shape, dtype=np.uint8)
    batch["action"] = generator.integers(ACTIONS, size=shape, dtype=np.int32)
    batch["reward"] = generator.standard_normal(shape, dtype=np.float32)
    batches: Iterator[dict[str, Any]] = iter(agent.stream(repeat(batch)))
    return next(batches)


def num_parameters(agent: Any) -> int:
    """Return the number of trained parameters, excluding the optimizer state, slow critic and normalizers."""
    trained = ("enc/", "dec/", "dyn/", "rew/", "con/", "pol/", "val/")
    return sum(values.size for name, values in agent.params.items() if name.startswith(trained))
