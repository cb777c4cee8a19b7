"""Measure memory and speed of compressed replay: bytes per step, adding and sampling, for several games.

Run it with `python scripts/compression.py out=<file>`. Each row also includes the times of the uncompressed
buffer, and of gathering the same number of frames from memory. Both are measured in the same process with one
thread.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import gymnasium
import numpy as np
import psutil
import torch

from benchmarks.deep_replay import fill_deep
from benchmarks.suite.bench import PEER_SCRIPTS
from benchmarks.suite.process import ProcessVariant
from reverie.buffers import (
    EpisodeReplayBuffer,
    LatentSpec,
    ReplayConfig,
    ReplaySpec,
    StoredLatent,
)
from reverie.checkpoints.weights import load_weights, networks_of
from reverie.commands.options import own_settings
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.envs import EnvConfig, make_environment
from reverie.envs.config import Suite
from reverie.orchestration.dreamer.recipe import build_workflow
from reverie.utils.errors import UserError, exit_on_user_error
from reverie.utils.timestep import EnvSpec, TimeStep

Act = Callable[[TimeStep], np.ndarray]
PolicyOf = Callable[[EnvSpec], Act]

GAMES = ("pong", "breakout", "boxing", "seaquest", "ms_pacman")
# These are the sizes of size1m.
LATENT = LatentSpec(deter_size=512, num_latents=32)
WINDOWS, LENGTH, ENVS = 16, 64, 2
_HOLD = 8
_USAGE = """\
Measure compressed replay: scripts/compression.py out=<file> [key=value ...]

  scripts/compression.py out=rows.json                  bytes and times of seven environments
  scripts/compression.py out=deep.json deep=2000000     fill a replay for ten million steps with new play

"""


@dataclass(kw_only=True, slots=True)
class Settings:
    """Settings of the measurement, typed as key=value."""

    out: str | None = None
    """JSON file for all rows."""

    steps: int = 3000
    """Number of recorded steps in each of two environments. Filling the buffers repeats them."""

    records: int = 40_000
    """Number of records in each buffer."""

    deep: int = 0
    """Steps of new Pong play to add to a replay with room for ten million, or 0 to measure the environments
    instead."""

    weights: str = "src/pretrained/pong/weights.safetensors"
    """Weights of an agent trained with experiment=dreamer_ataripong. This agent's play is also measured."""

    torchrl: str | None = None
    """Python interpreter with torchrl, to measure its compressed storage on the same play, or null to skip
    it."""

    def __post_init__(self) -> None:
        if not self.out:
            raise UserError("out is missing. Set a file for the rows, e.g. out=rows.json.")
        for name, path in (("weights", self.weights), ("torchrl", self.torchrl)):
            if path is not None and not Path(path).is_file():
                raise UserError(f"{name}={path} is no file.")


@dataclass(frozen=True, slots=True)
class Play:
    """Recorded steps and the action that follows each record."""

    env: EnvSpec
    steps: list[TimeStep]
    actions: list[np.ndarray]


def play(config: EnvConfig, steps: int, policy_of: PolicyOf) -> Play:
    """Play a policy in two environments. Return the observations and actions."""
    environment = make_environment(config, 0)
    try:
        spec, step, seen, actions = environment.spec, environment.reset(), [], []
        act = policy_of(spec)
        for _ in range(steps):
            seen.append(step)
            actions.append(act(step))
            step = environment.step(actions[-1])
        return Play(spec, seen, actions)
    finally:
        environment.close()


def random_policy(spec: EnvSpec, hold: int) -> Act:
    """Return a random policy that repeats each action for `hold` steps."""
    chance, calls, size = np.random.default_rng(0), count(), spec.action.size
    held = np.zeros((ENVS, size), np.float32)

    def act(_: TimeStep) -> np.ndarray:
        if next(calls) % hold == 0:
            drawn = chance.integers(size, size=ENVS)
            held[:] = np.eye(size)[drawn] if spec.action.is_discrete else chance.uniform(-1, 1, held.shape)
        return held.copy()

    return act


def trained_policy(spec: EnvSpec, weights: str) -> Act:
    """Return a policy that samples actions from an agent trained with experiment=dreamer_ataripong."""
    [job] = compose_jobs(["experiment=dreamer_ataripong", "device=cpu"])
    workflow = build_workflow(typed(job, DreamerTrainConfig), spec)
    load_weights(weights, networks_of(workflow))
    return workflow.eval_policy(ENVS, seed=0, sample=True).act


def plays(steps: int, weights: str) -> Iterator[tuple[str, str, Play]]:
    """Yield each environment, policy and play."""
    for hold, policy in ((1, "random"), (_HOLD, f"random, held for {_HOLD} steps")):
        draw = partial(random_policy, hold=hold)
        for game in GAMES:
            yield game, policy, play(EnvConfig(game=game, num_envs=ENVS), steps, draw)
        vector = EnvConfig(suite=Suite.gymnasium, id="CartPole-v1", num_envs=ENVS, action_repeat=1)
        yield "CartPole-v1, vectors", policy, play(vector, steps, draw)
        rendered = EnvConfig(suite=Suite.gymnasium, id=_register(), num_envs=ENVS, action_repeat=1)
        yield "HalfCheetah-v5, rendered", policy, play(rendered, min(steps, 500), draw)
    trained = partial(trained_policy, weights=weights)
    yield "pong", "trained", play(EnvConfig(game="pong", num_envs=ENVS), steps, trained)


def _register() -> str:
    """Register HalfCheetah with rendered 64 x 64 images, and return its id."""
    name = "ReverieRenderedCheetah-v0"
    if name not in gymnasium.registry:
        os.environ.setdefault("MUJOCO_GL", "egl")
        gymnasium.register(name, entry_point=_rendered_cheetah, max_episode_steps=1000)
    return name


def _rendered_cheetah(**_: object) -> gymnasium.Env:
    made = gymnasium.make("HalfCheetah-v5", render_mode="rgb_array", width=64, height=64)
    return gymnasium.wrappers.AddRenderObservation(made, render_only=True)


def buffer_of(env: EnvSpec, records: int, **settings: object) -> EpisodeReplayBuffer:
    """Return a buffer for two environments and size1m."""
    config = ReplayConfig(capacity=records, memory_budget_gib=2.0, **settings)  # pyright: ignore[reportArgumentType]
    spec = ReplaySpec(config, env.observation, env.action, ENVS, LENGTH + 1, LATENT)
    return EpisodeReplayBuffer(spec, generator=np.random.default_rng(0))


def fill(buffer: EpisodeReplayBuffer, played: Play, records: int) -> float:
    """Add recorded play until the buffer has `records` records. Return the mean microseconds per record."""
    latent = StoredLatent(torch.zeros(ENVS, 512), torch.zeros(ENVS, 32, dtype=torch.uint8))
    seconds, rounds = 0.0, records // ENVS
    for index in range(rounds):
        at = index % len(played.steps)
        step = played.steps[at]
        if at == 0 and index:
            step = replace(step, reward=np.zeros_like(step.reward), is_first=np.ones_like(step.is_first))
        begin = time.perf_counter()
        buffer.add(step, played.actions[at], latent)
        seconds += time.perf_counter() - begin
    return seconds / (rounds * ENVS) * 1e6


def milliseconds(call: Callable[[], object], rounds: int = 30) -> float:
    """Return the median time of a call in milliseconds."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        found.append((time.perf_counter() - begin) * 1e3)
    return median(found)


def measure(name: str, policy: str, played: Play, settings: Settings) -> dict[str, object]:
    """Return one row of the table."""
    records = settings.records
    plain = buffer_of(played.env, records)
    coded = buffer_of(played.env, records, compressed=True, latent_every=8)
    row: dict[str, object] = {"environment": name, "policy": policy, "steps_played": len(played.steps) * ENVS}
    for kind, buffer in (("plain", plain), ("compressed", coded)):
        row[f"{kind}_add_us_per_step"] = fill(buffer, played, records)
        row[f"{kind}_records"] = buffer.total_steps
    parts, held = coded.plan.part_bytes, coded.total_steps
    codes = coded.stats()["record_bytes"]
    latent = parts["latents"] / coded.plan.num_rows
    raw = sum(spec.nbytes for spec in plain.plan.fields.values())
    raw_latent = plain.plan.part_bytes["latents"] / plain.plan.num_rows
    row |= {
        "bytes_per_step": raw - raw_latent,
        "bytes_per_step_with_latents": raw,
        "compressed_bytes_per_step": codes,
        "compressed_bytes_per_step_with_latents": codes + latent,
        "times_less": (raw - raw_latent) / codes,
        "times_less_with_latents": raw / (codes + latent),
    }
    kept = {name: buffer.sample(WINDOWS) for name, buffer in (("plain", plain), ("compressed", coded))}
    image = next(iter(played.env.observation.values()))
    memory = torch.zeros(min(held, 40_000), image.nbytes, dtype=torch.uint8)
    rows = torch.randint(len(memory) - LENGTH, (WINDOWS, 1)) + torch.arange(LENGTH + 1)
    gathered = torch.empty(WINDOWS * (LENGTH + 1), image.nbytes, dtype=torch.uint8)
    wanted = rows.ravel()
    move = partial(torch.index_select, memory, 0, wanted, out=gathered)
    row["gather_limit_ms"] = milliseconds(move)
    row["plain_sample_ms"] = milliseconds(lambda: plain.sample(WINDOWS, out=kept["plain"]))
    row["compressed_sample_ms"] = milliseconds(lambda: coded.sample(WINDOWS, out=kept["compressed"]))
    # This measures the time that a prefetch thread could overlap with an update.
    with ThreadPoolExecutor(1) as ahead:
        busy = torch.randn(600, 600)

        def update() -> None:
            for _ in range(20):
                busy.matmul(busy)

        alone = milliseconds(update)

        def both() -> None:
            drawn = ahead.submit(coded.sample, WINDOWS, None, kept["compressed"])
            update()
            drawn.result()

        row["update_ms"] = alone
        row["update_and_ahead_ms"] = milliseconds(both)
        row["update_then_sample_ms"] = milliseconds(
            lambda: (update(), coded.sample(WINDOWS, out=kept["compressed"]))
        )
    if settings.torchrl and name in GAMES:
        row |= torchrl_storage(settings.torchrl, played, rounds=30)
    row["resident_mb"] = psutil.Process().memory_info().rss / 1e6
    return row


def torchrl_storage(python: str, played: Play, rounds: int) -> dict[str, object]:
    """Return the bytes and times of torchrl's compressed storage for the first environment's frames."""
    with TemporaryDirectory() as folder:
        frames = Path(folder) / "frames.npy"
        np.save(frames, np.stack([step.observation["image"][0] for step in played.steps]))
        options = {"frames": str(frames), "windows": WINDOWS, "length": LENGTH, "threads": 1}
        peer = ProcessVariant("torchrl", [python, str(PEER_SCRIPTS / "torchrl_compressed.py")], options)
        try:
            peer.warm_up()
            drawn = [peer.block(0.0)[0] for _ in range(rounds)]
        finally:
            peer.close()
    return {
        "torchrl_versions": peer.facts["versions"],
        "torchrl_bytes_per_step": peer.facts["bytes_per_step"],
        "torchrl_add_us_per_step": peer.facts["add_us_per_step"],
        "torchrl_sample_ms": median(drawn) * 1e3,
    }


def main() -> None:
    """Measure all rows and write them."""
    with exit_on_user_error():
        settings, _ = own_settings(Settings, sys.argv[1:], "compression", _USAGE)
    assert settings.out is not None
    torch.set_num_threads(1)
    rows = []
    found = (
        fill_deep(settings.deep)
        if settings.deep
        else (measure(*each, settings) for each in plays(settings.steps, settings.weights))
    )
    for row in found:
        rows.append(row)
        print(json.dumps(rows[-1]), flush=True)
    result = {"settings": asdict(settings), "torch": torch.__version__, "rows": rows}
    Path(settings.out).write_text(json.dumps(result, indent=1) + "\n")
