"""Losses and gradients of the author's code with sampled latents and actions, for tests/golden.

    .venv-peers-jax/bin/python benchmarks/peers/dreamerv3_sampled.py <checkout>

The networks and batches are those of `tests/golden/*.npz`, which were recorded with deterministic sampling.
This writes the mean and standard deviation of each loss, metric and squared gradient norm over `SEEDS` seeds
to `tests/golden/sampled.json`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

# JAX reads it when it first computes.
os.environ["NPROC"] = "1"

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
from dreamerv3_agent import Spaces, with_positions
from ruamel.yaml import YAML

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
SEEDS = 2000
SIZES = {
    r".*\.rssm": {"deter": 64, "hidden": 16, "stoch": 4, "classes": 4},
    r".*\.depth": 2,
    r".*\.units": 16,
    "agent.imag_length": 4,
    "batch_size": 3,
    "batch_length": 6,
    "jax.platform": "cpu",
    "jax.compute_dtype": "float32",
    "jax.prealloc": False,
}
METRICS = ("adv_std", "ent/action", "rew", "val")
SPACES = {
    "vector": ({"vector": elements.Space(np.float32, (5,))}, elements.Space(np.float32, (2,), -1, 1)),
    "pixels": ({"image": elements.Space(np.uint8, (64, 64, 3))}, elements.Space(np.int32, (), 0, 6)),
}
"""The observations and the action of each case."""


def record(case: str, checkout: Path) -> dict[str, list[float]]:
    """Return the mean and standard deviation of each number over all seeds."""
    from dreamerv3 import main

    main.make_env = lambda *_, **__: Spaces(*SPACES[case])
    configs = YAML(typ="safe").load((checkout / "dreamerv3/configs.yaml").read_text())
    config = elements.Config(configs["defaults"]).update(SIZES).update({"logdir": "/tmp"})
    agent = main.make_agent(elements.Config({**config, "jax": {**config.jax, "precompile": False}}))
    jax.config.update("jax_transfer_guard", "allow")
    arrays = np.load(GOLDEN / f"{case}.npz")
    parameters = {name: jnp.asarray(agent.params[name]) for name in agent.params}
    recorded = {name.removeprefix("param0/"): arrays[name] for name in arrays if name.startswith("param0/")}
    assert recorded.keys() <= parameters.keys(), recorded.keys() - parameters.keys()
    parameters |= {name: jnp.asarray(value) for name, value in recorded.items()}
    data = {name.removeprefix("batch0/"): arrays[name] for name in arrays if name.startswith("batch0/")}
    shape = data["reward"].shape
    data |= {"consec": np.zeros(shape, np.int32), "stepid": np.zeros((*shape, 20), np.uint8)}
    batch = {name: jnp.asarray(data[name], agent.spaces[name].dtype) for name in agent.spaces}

    def numbers(batch: dict[str, Any]) -> dict[str, Any]:
        carry = agent.model.init_train(shape[0])
        start, seen, actions, _ = agent.model._apply_replay_context(carry, batch)

        def loss() -> tuple[Any, Any]:
            total, (_, _, _, metrics) = agent.model.loss(start, seen, actions, training=True)
            return total, metrics

        _, _, gradients, metrics = nj.grad(loss, agent.model.modules, has_aux=True)()
        names = [name for name in metrics if name.startswith("loss/") or name in METRICS]
        squares = {f"grad/{name}": jnp.square(each).sum() for name, each in gradients.items()}
        return {name: metrics[name] for name in names} | squares

    call = jax.jit(lambda seed: nj.pure(numbers)(parameters, batch, seed=seed)[1])
    seeds = np.random.default_rng(0).integers(0, 2**32 - 1, (SEEDS, 2), np.uint32)
    rows = [jax.device_get(call(seed)) for seed in seeds]
    found = {name: np.array([row[name] for row in rows], np.float64) for name in sorted(rows[0])}
    return {name: [float(each.mean()), float(each.std())] for name, each in found.items()}


def main(checkout: str) -> None:
    """Record both cases."""
    sys.path.insert(0, checkout)
    jax.jit = with_positions(jax.jit)
    cases = {case: record(case, Path(checkout)) for case in SPACES}
    texts = (f'  "{case}": {json.dumps(rows, separators=(",", ":"))}' for case, rows in cases.items())
    lines = [f'"seeds": {SEEDS}']
    (GOLDEN / "sampled.json").write_text("{\n  " + ",\n".join([*lines, *texts]) + "\n}\n")


main(*sys.argv[1:])
