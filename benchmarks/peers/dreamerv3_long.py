"""1,500 updates of the author's code and of Reverie, from the same parameters and on the same batches.

    python=.venv-peers-jax/bin/python
    $python benchmarks/peers/dreamerv3_long.py author <run> <folder> <seed> <precision> <checkout>
    .venv/bin/python -m benchmarks.peers.dreamerv3_long reverie <run> <folder> <seed> <precision>

`<run>` is a folder of `dreamerv3_run.py reacher_easy`. Batches are sampled from the first chunks of its
replay. The first command also saves the initial parameters in `<folder>`, and the second loads them.
`<precision>` is float32 or bfloat16. In bfloat16, Reverie's code is compiled, because runs use both. Both
programs use the settings of `dmc_proprio` in `configs.yaml` except for the size of a batch, and sample
latents and actions with their own random numbers. They write the means of their metrics over every 100
updates.
"""

import csv
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

UPDATES, EVERY = 1500, 100
WINDOWS, LENGTH = 8, 32
CHUNKS = 100
"""Number of chunks of the replay, each with more than 100 steps of one environment."""
METRICS = {
    "dynamics loss": ("loss/dyn", "loss/dynamics"),
    "decoder loss": ("loss/vector", "loss/decoder/vector"),
    "reward loss": ("loss/rew", "loss/reward"),
    "value loss": ("loss/value", "loss/value"),
    "imagined reward": ("rew", "imagined_reward_mean"),
    "value": ("val", "value_mean"),
    "advantage (std)": ("adv_std", "advantage_std"),
    "policy entropy": ("ent/action", "policy_entropy"),
    "prior entropy": ("dyn_ent", "prior_entropy"),
}
"""Compared metrics: names of the author's code and of Reverie."""


def batches(run: Path) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield batches of windows with one step of context, in the same order in each process."""
    chunks: list[dict[str, NDArray[Any]]] = []
    for file in sorted((run / "replay").glob("*.npz")):
        chunk = dict(np.load(file))
        chunk["vector"] = np.concatenate([chunk.pop(n) for n in ("position", "to_target", "velocity")], 1)
        if len(chunk["reward"]) > 100 and len(chunks) < CHUNKS:
            chunks.append(chunk)
    starts = np.array([len(chunk["reward"]) - LENGTH for chunk in chunks])
    generator = np.random.default_rng(0)
    while True:
        rows = []
        for at in generator.choice(len(chunks), WINDOWS, p=starts / starts.sum()):
            start = generator.integers(starts[at])
            rows.append({name: values[start : start + LENGTH + 1] for name, values in chunks[at].items()})
        yield {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def write(path: Path, rows: Sequence[Mapping[str, float]], which: int) -> None:
    """Write the means of the metrics over every `EVERY` updates. `which` selects the names of a program."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["updates", *METRICS])
        for start in range(0, len(rows), EVERY):
            part = rows[start : start + EVERY]
            means = (np.mean([row[names[which]] for row in part]) for names in METRICS.values())
            writer.writerow([start + EVERY, *(f"{mean:.5g}" for mean in means)])


def author(run: Path, folder: Path, seed: int, precision: str, checkout: str) -> None:
    """Train the author's agent, and save its initial parameters."""
    os.environ["NPROC"] = "1"
    sys.path.insert(0, checkout)
    import elements
    import jax
    from dreamerv3 import main
    from dreamerv3_agent import Spaces, with_positions
    from ruamel.yaml import YAML

    jax.jit = with_positions(jax.jit)
    spaces = {"vector": elements.Space(np.float32, (6,))}, elements.Space(np.float32, (2,), -1, 1)
    main.make_env = lambda *_, **__: Spaces(*spaces)
    configs = YAML(typ="safe").load(Path(checkout, "dreamerv3/configs.yaml").read_text())
    config = elements.Config(configs["defaults"]).update(configs["dmc_proprio"])
    changes = {"seed": seed, "batch_size": WINDOWS, "batch_length": LENGTH, "logdir": "/tmp"}
    config = config.update(
        {**changes, "jax.platform": "cpu", "jax.compute_dtype": precision, "jax.prealloc": False}
    )
    jax_config = {**config.jax, "precompile": False, "profiler": False}
    agent = main.make_agent(elements.Config({**config, "jax": jax_config}))
    jax.config.update("jax_transfer_guard", "allow")
    initial = {name: np.asarray(each) for name, each in agent.params.items() if not name.startswith("opt/")}
    np.savez(folder / f"initial_{seed}.npz", **initial)

    def typed() -> Iterator[dict[str, NDArray[Any]]]:
        for batch in batches(run):
            shape = batch["reward"].shape
            batch |= {"consec": np.zeros(shape, np.int32), "stepid": np.zeros((*shape, 20), np.uint8)}
            yield {name: np.asarray(batch[name], space.dtype) for name, space in agent.spaces.items()}

    stream, carry, rows = iter(agent.stream(typed())), agent.init_train(WINDOWS), []
    # The metrics of an update are returned by the next one.
    for _ in range(UPDATES + 1):
        carry, _, metrics = agent.train(carry, next(stream))
        rows += [metrics] if metrics else []
    write(folder / f"author_{seed}.csv", rows, 0)


def reverie(run: Path, folder: Path, seed: int, precision: str) -> None:
    """Train Reverie's workflow, starting from the author's initial parameters."""
    import torch

    from reverie.buffers import SampledPositions, SequenceBatch, StoredLatent
    from reverie.models import ModelConfig, OptimizerConfig
    from reverie.utils.timestep import ActionSpec, ArraySpec, EnvSpec
    from reverie.workflows.world_models import (
        ControllerConfig,
        DreamerConfig,
        DreamerWorkflow,
        WorldModelConfig,
    )
    from reverie.workflows.world_models.compiled import CompiledDreamer
    from tests.golden.reference import all_parameters, name_map

    torch.set_num_threads(1)
    vector, action = ArraySpec((6,), np.dtype(np.float32)), ActionSpec(size=2, is_discrete=False)
    env = EnvSpec("reacher_easy", {"vector": vector}, action, num_envs=16, action_repeat=2)
    config = DreamerConfig(
        model=ModelConfig(units=64, deter=512, hidden=64, stoch=32, classes=4, depth=4),
        world_model=WorldModelConfig(),
        controller=ControllerConfig(),
        optimizer=OptimizerConfig(learning_rate=4e-5),
    )
    kind = CompiledDreamer if precision == "bfloat16" else DreamerWorkflow
    workflow = kind(env, config, torch.device("cpu"), getattr(torch, precision), seed)
    initial, parameters = np.load(folder / f"initial_{seed}.npz"), all_parameters(workflow)
    with torch.no_grad():
        for ours, theirs, layout in name_map("vector", stoch=128):
            parameters.pop(ours).copy_(layout(torch.from_numpy(initial[theirs])))
    assert not parameters, parameters.keys()
    rows, nowhere = [], np.zeros(WINDOWS, np.int64)
    for _, arrays in zip(range(UPDATES), batches(run), strict=False):
        data = {name: torch.from_numpy(values) for name, values in arrays.items()}
        classes = data["dyn/stoch"][:, 0].argmax(-1).to(torch.uint8)
        batch = SequenceBatch(
            observation={"vector": data["vector"]},
            **{name: data[name] for name in ("action", "reward", "is_first", "is_last", "is_terminal")},
            context=StoredLatent(deter=data["dyn/deter"][:, 0], stoch=classes),
            positions=SampledPositions(nowhere, nowhere),
        )
        rows.append({name: float(value) for name, value in workflow.update(batch).metrics.items()})
    write(folder / f"reverie_{seed}.csv", rows, 1)


if __name__ == "__main__":
    program, run, folder, seed, *others = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    {"author": author, "reverie": reverie}[program](Path(run), Path(folder), int(seed), *others)
