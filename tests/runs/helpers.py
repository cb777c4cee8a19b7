"""Tiny real runs, and functions that read their files."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tensorboard.backend.event_processing.event_accumulator import TENSORS
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util import tensor_util

from reverie.buffers import EpisodeReplayBuffer
from reverie.checkpoints.checkpoint import Checkpoint, list_checkpoints
from reverie.checkpoints.run_folder import load_run
from reverie.commands.runs import checked_run
from reverie.commands.train import train
from reverie.orchestration.orchestrator import build_replay
from reverie.orchestration.recipes import recipe_of
from reverie.planning import Resource
from reverie.planning.recipe import environment_spec
from reverie.testing.fingerprint import fingerprint, hash_of
from reverie.utils.errors import exit_on_user_error
from reverie.utils.timestep import TimeStep

Lines = list[dict[str, float]]

SMALL = (
    "device=cpu",
    # The runtime type checks of the tests cannot be compiled.
    "compile=none",
    "model=debug",
    "controller.horizon=5",
    "training.batch_size=2",
    # This is the shortest length with an open-loop animation.
    "training.sequence_length=6",
    "training.learning_starts=40",
    # This makes one update per 4 steps.
    "training.train_ratio=3",
    "training.log_interval=50",
    "training.checkpoint_interval=150",
    "training.keep_checkpoints=9",
    "training.video_interval=150",
    "training.total_timesteps=300",
    "buffer.capacity=1000",
    "buffer.chunk_length=32",
)
CARTPOLE = ("experiment=dreamer_cartpole", *SMALL, "env.num_envs=1", "training.video_interval=0")
CATCH = ("experiment=dreamer_catch", *SMALL, "env.num_envs=4")
PONG = (
    "experiment=dreamer_ataripong",
    *SMALL,
    "env.num_envs=1",
    "buffer.compressed=false",
    "training.learning_starts=8",
    "training.warmup_steps=0",
    "training.log_interval=20",
    "training.checkpoint_interval=20",
    "training.keep_checkpoints=2",
    "training.video_interval=30",
    "training.total_timesteps=60",
)
POPULATION = (
    "experiment=erl_pendulum",
    "device=cpu",
    "population.size=4",
    "population.elite_fraction=0.3",
    "population.episodes=1",
    "population.exploration_episodes=1",
    "td3.hidden_units=16",
    "env.time_limit=20",
    "buffer.capacity=400",
    "buffer.chunk_length=32",
    "training.generations=4",
    "training.gradient_steps_per_generation=3",
    "training.gradient_accumulation_steps=2",
    "training.batch_size=8",
    "training.learning_starts=100",
)
CATCH_STEPS = 7
"""Number of actions in each Catch episode."""


def start(run_dir: Path, *overrides: str) -> Path:
    """Train a run in this process, as the command line does, and return its folder.

    Hydra's job is left out, because it would compose the configuration three more times.
    """
    with exit_on_user_error():
        train(*checked_run([*overrides, f"run_dir={run_dir}"]))
    return run_dir


def resume(run_dir: Path, *overrides: str) -> Path:
    """Continue a run in this process."""
    with exit_on_user_error():
        train(*checked_run([f"resume={run_dir}", *overrides]))
    return run_dir


def without_checksum(config: Path) -> str:
    """Return the text of a `config.yaml` as a user might edit it."""
    return "".join(line for line in config.read_text().splitlines(keepends=True) if not line.startswith("#"))


def metrics_of(run_dir: Path) -> Lines:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def intervals_of(run_dir: Path) -> Lines:
    """Return the lines of log intervals, without episodes, evaluations and memory reports."""
    return [line for line in metrics_of(run_dir) if "train/updates" in line]


def series_of(lines: Lines) -> dict[str, list[tuple[int, float]]]:
    """Return the (step, value) pairs of each tag in float32, as TensorBoard stores them."""
    series = defaultdict(list)
    for line in lines:
        for tag, value in line.items():
            if tag != "step":
                series[tag].append((int(line["step"]), float(np.float32(value))))
    return dict(series)


def events_of(run_dir: Path) -> EventAccumulator:
    """Return all events of a run, in the form of TensorBoard's own pages."""
    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={TENSORS: 0})
    events.Reload()
    return events


def tags_of(events: EventAccumulator, plugin: str) -> set[str]:
    tags = events.Tags()[TENSORS]
    return {tag for tag in tags if events.SummaryMetadata(tag).plugin_data.plugin_name == plugin}


def layout_of(events: EventAccumulator) -> list[Any]:
    """Return the charts of the last Custom Scalars layout."""
    [tag] = tags_of(events, "custom_scalars")
    content = tensor_util.make_ndarray(events.Tensors(tag)[-1].tensor_proto).item()
    layout: Any = layout_pb2
    return list(layout.Layout.FromString(content).category[0].chart)


def scalars_of(events: EventAccumulator) -> dict[str, list[tuple[int, float]]]:
    return {
        tag: [
            (event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in events.Tensors(tag)
        ]
        for tag in tags_of(events, "scalars")
    }


def saved_steps(run_dir: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(run_dir)]


def checkpoint_at(run_dir: Path, step: int) -> Checkpoint:
    return next(checkpoint for checkpoint in list_checkpoints(run_dir) if checkpoint.step == step)


def saved_model(run_dir: Path, step: int) -> dict[str, Any]:
    return checkpoint_at(run_dir, step).model(torch.device("cpu"))


def update_counts(run_dir: Path, step: int) -> dict[str, int]:
    """Return the number of updates of each optimizer, according to its own count."""
    return {name: int(state["updates"]) for name, state in saved_model(run_dir, step)["optimizers"].items()}


def saved_loop(run_dir: Path, step: int) -> dict[str, Any]:
    return checkpoint_at(run_dir, step).state()


def saved_replay(run_dir: Path, step: int) -> EpisodeReplayBuffer:
    config = load_run(str(run_dir))
    replay = build_replay(
        config, recipe_of(config).replay_spec(config, environment_spec(config, recipe_of(config))), run_dir
    )
    checkpoint_at(run_dir, step).restore_replay(replay)
    return replay


def saved_records(run_dir: Path, step: int, name: str) -> NDArray[Any]:
    """Return one field of the replay, environment after environment, oldest record first."""
    replay = saved_replay(run_dir, step)
    records = replay._index.records
    pieces = [
        replay._store.records(row, count)[name].numpy()
        for env, (head, tail) in enumerate(zip(records.head.tolist(), records.tail.tolist(), strict=True))
        for _, count, row in records.spans(env, head, tail)
    ]
    return np.concatenate(pieces)


def identity(run_dir: Path) -> dict[str, str]:
    """Return the fingerprint without Python's generator, because the tests' type checker uses it."""
    found = fingerprint(run_dir)
    loop = saved_loop(run_dir, int(found["step"]))
    del loop["global_generators"]["python"]
    return found | {"loop": hash_of(loop)}


def tensors_in(state: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Return all tensors in nested dictionaries and lists, by path."""
    if isinstance(state, torch.Tensor):
        return {name: state}
    pairs = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return {path: t for key, value in pairs for path, t in tensors_in(value, f"{name}/{key}").items()}


def differing(a: Any, b: Any) -> set[str]:
    """Return the paths of the tensors that differ in any bit."""
    first, second = tensors_in(a), tensors_in(b)
    assert first.keys() == second.keys() and first
    return {path for path in first if not torch.equal(first[path], second[path])}


def files_in(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def arrival(
    rewards: list[float], first: str = "", last: str = "", image: NDArray[np.uint8] | None = None
) -> TimeStep:
    """Return one step of len(rewards) environments. With `first="02"`, 0 and 2 begin an episode."""
    envs = range(len(rewards))
    is_last = np.array([str(i) in last for i in envs])
    return TimeStep(
        observation={} if image is None else {"image": image},
        reward=np.array(rewards, np.float32),
        is_first=np.array([str(i) in first for i in envs]),
        is_last=is_last,
        is_terminal=is_last,
    )


def error_of(
    capsys: pytest.CaptureFixture[str], call: Callable[[], object], *, has_output: bool = False
) -> str:
    """Return the message of a command that must fail with exit code 2 and a single line on stderr."""
    with pytest.raises(SystemExit) as failure:
        call()
    shown = capsys.readouterr()
    assert (failure.value.code, bool(shown.out)) == (2, has_output)
    assert (shown.err.count("\n"), shown.err[:7]) == (1, "error: ")
    return shown.err.removeprefix("error: ").rstrip("\n")


def bytes_of(resource: Resource, row: str) -> int:
    """Return the bytes of a plan's row for a resource, or 0 without such a row."""
    return sum(each.nbytes for each in resource.rows if each.name == row)
