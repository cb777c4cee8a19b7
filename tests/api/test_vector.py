"""Training on vector environments, and the way of tensors from an environment to the replay."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv, VectorEnv
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import reverie
from examples.catch_tensors import CatchTensors
from reverie.buffers import EpisodeReplayBuffer, LatentSpec, ReplayConfig, ReplaySpec, episode_replay
from reverie.buffers.config import ReplayStorage
from reverie.commands.runs import checked_run
from reverie.config.dreamer import DreamerTrainConfig
from reverie.envs import EnvConfig, Suite, make_environment
from reverie.envs.native import NativeVector
from reverie.envs.registered import register_maker
from reverie.models import OptimizerConfig
from reverie.planning import HOST
from reverie.utils.timestep import ActionSpec, ArraySpec, EnvSpec, TimeStep
from reverie.workflows.world_models import ControllerConfig, DreamerConfig, DreamerWorkflow, WorldModelConfig

from ..models.tiny import TINY
from ..runs.helpers import SMALL, bytes_of, identity

BRIEF = (*SMALL, "logger=plain")
SPEC = EnvSpec(
    "catch", {"image": ArraySpec((64, 64, 3), np.dtype(np.uint8))}, ActionSpec(3, True), num_envs=4
)


def poles(num_envs: int) -> VectorEnv:
    """Make a batch without a state."""
    return SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * num_envs, autoreset_mode="SameStep")


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_a_resumed_run_on_a_batch_with_a_state_is_the_unbroken_run_bit_for_bit(
    empty_folder: Path, mode: str
) -> None:
    def games(num_envs: int) -> VectorEnv:
        return CatchTensors(num_envs, autoreset_mode=mode)

    # Three games end together after 21 steps, so after step 60 their final records come next.
    settings: dict[str, Any] = {"env.num_envs": 3, "training.log_interval": 20}
    settings |= {"training.video_interval": 60, "training.checkpoint_interval": 60}
    train = partial(reverie.train, "dreamer_catch", BRIEF, env=games, **settings)
    unbroken = train(total_timesteps=120, run_dir="unbroken")
    train(total_timesteps=60, run_dir="resumed")
    resumed = reverie.train(resume="resumed", env=games, total_timesteps=120)
    assert identity(resumed.run_dir) == identity(unbroken.run_dir)
    lengths = [line["episode/length"] for line in unbroken.metrics() if "episode/length" in line]
    assert lengths and set(lengths) == {7.0}


def test_a_batch_without_a_state_starts_new_episodes_and_keeps_its_records(empty_folder: Path) -> None:
    reverie.train("dreamer_cartpole", BRIEF, env=poles(2), total_timesteps=60, run_dir="poles")
    reverie.train(resume="poles", env=poles(2), total_timesteps=80)
    log = Path("poles/train.log").read_text()
    assert "SyncVectorEnv-v0, 2 environments, 1 frame per agent step" in log
    assert "resumed runs start new episodes, because the environment has no `state_dict`" in log
    assert "2 open episodes could not be restored" in log
    with pytest.raises(reverie.UserError, match=r"Pass it, e\.g\. reverie\.load"):
        gymnasium.registry.pop("python/__main__.SyncVectorEnv-v0")
        reverie.load("poles")
    agent = reverie.load("poles", env=poles)
    env = agent.make_env()
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(agent.act(observation))


def test_settings_that_need_more_or_other_environments_are_refused(empty_folder: Path) -> None:
    for env, settings, message in (
        (
            poles(2),
            ["training.evaluation_interval=20"],
            "evaluation_interval=20 needs environments besides env",
        ),
        (poles(2), ["env.num_envs=4"], "has 2 environments, but 4 are needed"),
        (poles, ["collect.collectors=2"], "collect.collectors=2 cannot split the batch of env=vector"),
        (poles, ["workflow=population"], "workflow=population does not support env=vector"),
    ):
        with pytest.raises(reverie.UserError, match=message):
            reverie.train(overrides=[*settings, "device=cpu"], env=env, run_dir="refused")
    assert not Path("refused").exists()


def test_the_plan_covers_the_replay_of_a_thousand_games(empty_folder: Path) -> None:
    env_id = register_maker(CatchTensors)
    settings = [
        "experiment=dreamer_catch", "device=cpu", "env=vector", f"env.id={env_id}", "env.num_envs=1024",
        "training.learning_starts=9216", "training.train_ratio=1", "buffer.chunk_length=8",
    ]  # fmt: skip
    config, preflight, _ = checked_run(settings)
    assert isinstance(config, DreamerTrainConfig)
    resource = preflight.plan.resource(HOST)
    # Each stream has two spare chunks besides the capacity of 20,000 records.
    rows = 20_000 + 1024 * 2 * 8
    record = 64 * 64 * 3 + 3 * 4 + 4 + 3 + 2 * 256 + config.model.stoch
    assert bytes_of(resource, "replay") == rows * record
    # Acting on the whole batch needs more than its observations.
    assert bytes_of(resource, "environments") > 10 * 1024 * 64 * 64 * 3


# --- the way of tensors ---


def workflow_on(device: str) -> DreamerWorkflow:
    parts = {"world_model": WorldModelConfig(), "controller": ControllerConfig(horizon=3)}
    config = DreamerConfig(model=TINY, **parts, optimizer=OptimizerConfig())
    return DreamerWorkflow(SPEC, config, torch.device(device))


def replay_on(device: str) -> EpisodeReplayBuffer:
    config = ReplayConfig(capacity=100, chunk_length=4, storage=ReplayStorage.cuda)
    latent = LatentSpec(TINY.deter, TINY.stoch)
    spec = ReplaySpec(config, SPEC.observation, SPEC.action, SPEC.num_envs, 5, latent)
    return EpisodeReplayBuffer(spec, device=device)


def test_nothing_between_a_step_and_the_replay_reads_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    # Reading a tensor of the device `meta`, which has no memory, raises an error. It stands for a GPU.
    monkeypatch.setattr(episode_replay, "check_storage", lambda *_: None)
    workflow, replay, action = workflow_on("meta"), replay_on("meta"), None
    for number in range(20):
        step = TimeStep.empty(SPEC)
        is_final = number % 5 == 4
        step.is_first[:] = number % 5 == 0
        pictures = torch.empty(4, 64, 64, 3, dtype=torch.uint8, device="meta")
        envs = np.array([1, 3]) if is_final else None
        rows = slice(None) if envs is None else envs
        flags = {
            name: values[rows]
            for name, values in step.arrays().items()
            if name not in ("observation", "info")
        }
        arrived = TimeStep(observation={"image": pictures[rows]}, envs=envs, **flags)
        collected = workflow.collect_step(arrived)
        replay.add(arrived, action := collected.action, collected.latent, envs)
    assert isinstance(action, Tensor)
    with pytest.raises(NotImplementedError, match="meta"):
        action.cpu()
    assert replay.total_steps == 4 * 16 + 2 * 4


class HostReads(TorchFunctionMode):
    """Counts the bytes of tensors that Python reads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int]] = []

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("cpu", "numpy", "item", "tolist", "__array__", "__bool__", "__float__", "__int__"):
            self.found.append((name, args[0].nbytes))
        return func(*args, **(kwargs or {}))


def batch_of_games(device: str) -> NativeVector:
    env_id = register_maker(partial(CatchTensors, device=device))
    config = EnvConfig(suite=Suite.vector, id=env_id, action_repeat=1, num_envs=SPEC.num_envs)
    environment = make_environment(config, 0)
    assert isinstance(environment, NativeVector)
    return environment


def test_an_environment_on_tensors_copies_rewards_and_flags_once_per_step() -> None:
    environment = batch_of_games("cpu")
    step = environment.reset()
    for _ in range(20):
        with HostReads() as reads:
            after = environment.step(torch.eye(3)[torch.ones(len(step.reward), dtype=torch.long)])
        # Four numbers per game: the reward, two flags, and whether its action is finite.
        once = [("cpu", 4 * 4 * SPEC.num_envs), ("numpy", 4 * 4 * SPEC.num_envs)]
        assert reads.found == ([] if step.envs is not None else once)
        step = after


class DeviceCopies(TorchDispatchMode):
    """Lists copies between devices: their direction and size in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        source: Any = args[1] if name == "copy_" else args[0] if args else None
        if name == "_local_scalar_dense" and args[0].device.type != "cpu":
            self.found.append((args[0].device.type, "cpu", args[0].nbytes))
        elif name in ("copy_", "_to_copy") and source.device.type != result.device.type:
            self.found.append((source.device.type, result.device.type, source.nbytes))
        return result


@pytest.mark.gpu
def test_on_a_gpu_no_observation_action_or_latent_leaves_the_device() -> None:
    environment = batch_of_games("cuda")
    workflow, replay, step = workflow_on("cuda"), replay_on("cuda"), environment.reset()
    for _ in range(20):
        with DeviceCopies() as copies:
            collected = workflow.collect_step(step)
            replay.add(step, collected.action, collected.latent, step.envs)
            after = environment.step(collected.action)
        to_host = [nbytes for source, _, nbytes in copies.found if source == "cuda"]
        assert to_host == ([] if step.envs is not None else [4 * 4 * SPEC.num_envs])
        # Rows, rewards and flags take a few bytes per environment.
        assert sum(nbytes for source, _, nbytes in copies.found if source == "cpu") < 64 * SPEC.num_envs
        step = after
