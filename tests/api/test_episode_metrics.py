"""Numbers in `info` become episode metrics: in the log, in callbacks, in evaluations, and after `kill -9`."""

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import reverie
from reverie.checkpoints.checkpoint import list_checkpoints
from reverie.commands import evaluate
from reverie.envs import EnvConfig, VectorEnvironment, make_environment, make_single, validate_env
from reverie.envs.config import Suite
from reverie.envs.workers import numbers_of
from reverie.orchestration.world_model_orchestrator import WorldModelOrchestrator

from ..runs.helpers import CARTPOLE, POPULATION, identity, metrics_of, saved_loop, saved_steps
from ..runs.warm import Server

pytestmark = pytest.mark.usefixtures("empty_folder")
STEPS = 5
GOAL = [
    *CARTPOLE,
    "env=gymnasium",
    "env.info=[energy,nested/distance]",
    "training.total_timesteps=140",
    "training.log_interval=20",
    "training.checkpoint_interval=20",
    "logger=plain",
]
# A program of its own, so that processes can import it.
MODULE = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Goal(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.won = 0, bool(self.np_random.integers(2))
        # An info at the start of an episode is not one of its last step.
        return np.zeros(2, np.float32), {"success": 7.0}

    def step(self, action):
        self.time += 1
        over = self.time == 5
        info = {"success": self.won if over else not self.won, "energy": np.float32([self.time * 2])}
        info |= {"nested": {"distance": self.time + 0.5}, "name": "a text", "ignored": 3.0}
        return np.float32([self.time / 5, self.won]), 1.0, over and self.won, over and not self.won, info


gymnasium.register("Goal-v0", entry_point="goals:Goal")
"""


@pytest.fixture(autouse=True)
def goals(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write the environment to a module in the current folder."""
    (empty_folder / "goals.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(empty_folder))
    yield
    sys.modules.pop("goals", None)
    gymnasium.registry.pop("Goal-v0", None)


def episodes_of(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    return [line for line in lines if "episode/return" in line]


def test_the_last_info_of_an_episode_is_logged_and_passed_to_callbacks(
    capfd: pytest.CaptureFixture[str],
) -> None:
    seen: list[dict[str, float]] = []
    settings = [*GOAL, "env.id=goals:Goal-v0", "env.num_envs=3", "training.learning_starts=1000"]
    run = reverie.train(
        overrides=settings, callback=lambda step, values: seen.append(values), run_dir="metrics"
    )
    found = episodes_of(seen)
    assert len(found) == 27 and found == [
        {tag: line[tag] for tag in line if tag != "step"} for line in episodes_of(run.metrics())
    ]
    assert all((line["info/energy"], line["info/nested/distance"]) == (10, 5.5) for line in found)
    successes = [line["info/success"] for line in found]
    assert set(successes) == {0, 1} and not any("info/is_success" in line for line in found)
    last = [line for line in run.metrics() if "train/updates" in line][-1]
    recent = {tag: last[tag] for tag in last if tag.startswith("recent/")}
    assert recent == {
        "recent/return": 5,
        "recent/episodes": 20,
        "recent/info/success": pytest.approx(np.mean(successes[-20:])),
        "recent/info/energy": 10,
        "recent/info/nested/distance": 5.5,
    }
    log = capfd.readouterr().err
    assert "return 5 (mean of 20 episodes), " in log and "return 5 (mean of 3 episodes), " in log


def test_a_killed_run_logs_the_same_metrics_bit_for_bit(server: Server, empty_folder: Path) -> None:
    folder, whole = empty_folder / "killed", empty_folder / "whole"
    # An episode has 5 steps, so its last record has arrived at step 24, but it has not been logged.
    words = (*GOAL, "env.id=goals:Goal-v0", "training.checkpoint_interval=24")
    assert server.run("train", *words, f"run_dir={whole}", folder=empty_folder).code == 0
    without_end = ("training.total_timesteps=100000", f"run_dir={folder}")
    process = server.start("train", *words, *without_end, folder=empty_folder)
    process.wait_until(lambda: 24 in saved_steps(folder))
    process.send(signal.SIGKILL)
    assert process.end().code == -signal.SIGKILL
    for checkpoint in list_checkpoints(folder)[1:]:
        shutil.rmtree(checkpoint.folder)
    arrival = saved_loop(folder, 24)["environment"]["arrival"]
    assert arrival["is_last"].all() and arrival["info"]["energy"] == 10
    resumed = server.run("train", f"resume={folder}", "training.total_timesteps=140", folder=empty_folder)
    assert resumed.code == 0 and "WARNING" not in resumed.error
    assert identity(folder) == identity(whole)
    kept = ("step", "episode/", "info/", "recent/")
    logs = [
        [{tag: line[tag] for tag in line if tag.startswith(kept)} for line in metrics_of(each)]
        for each in (folder, whole)
    ]
    assert logs[0] == logs[1] and len(episodes_of(logs[0])) == 28
    assert all("info/success" in line for line in episodes_of(logs[0]))


def test_a_checkpoint_from_before_there_were_metrics_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_info(environment: VectorEnvironment) -> dict[str, Any]:
        state = saved_environment(environment)
        del state["arrival"]["info"]
        return state

    def without_recent(run: WorldModelOrchestrator) -> dict[str, Any]:
        return {name: value for name, value in saved_run(run).items() if name != "recent"}

    saved_environment, saved_run = VectorEnvironment.state_dict, WorldModelOrchestrator.state
    with monkeypatch.context() as older:
        older.setattr(VectorEnvironment, "state_dict", without_info)
        older.setattr(WorldModelOrchestrator, "state", without_recent)
        run = reverie.train(overrides=GOAL, env="goals:Goal-v0", total_timesteps=24, run_dir="older")
    reverie.train(resume="older", total_timesteps=40)
    [first, *others] = [line for line in episodes_of(run.metrics()) if line["step"] > 24]
    # Only the metrics of the episode that had just ended are lost.
    assert "info/success" not in first and all("info/success" in line for line in others) and others


def test_evaluations_report_means(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    settings = [*GOAL, "training.evaluation_interval=40", "training.evaluation_episodes=4"]
    run = reverie.train(overrides=settings, env="goals:Goal-v0", total_timesteps=40, run_dir="evaluated")
    [line] = [line for line in run.metrics() if "evaluation/return_mean" in line]
    assert (line["evaluation/info/energy"], line["evaluation/info/nested/distance"]) == (10, 5.5)
    assert line["evaluation/info/success"] in (0, 0.25, 0.5, 0.75, 1)
    assert "evaluation return 5 (standard error 0), energy 10, nested/distance 5.5, success " in (
        capfd.readouterr().err
    )
    result = run.evaluate(20)
    assert result["info"].keys() == {"energy", "nested/distance", "success"}
    assert 0 < result["info"]["success"] < 1
    monkeypatch.setattr(sys, "argv", ["reverie-evaluate", "run=evaluated"])
    evaluate.main()
    assert json.loads(capfd.readouterr().out) == result
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    evaluate.main()
    means = f"Mean energy: 10. Mean nested/distance: 5.5. Mean success: {result['info']['success']:.4g}.\n"
    assert capfd.readouterr().out.endswith(f"over 20 episodes of goals:Goal-v0. {means}")


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_metrics_of_recorded_statistics(vectorization: str) -> None:
    settings = [
        *GOAL,
        "env.wrappers=[gymnasium.wrappers.RecordEpisodeStatistics]",
        "training.learning_starts=1000",
        f"env.vectorization={vectorization}",
    ]
    run = reverie.train(overrides=settings, env="CartPole-v1", run_dir="recorded")
    found = episodes_of(run.metrics())
    assert found and all(line["info/episode/r"] == line["episode/return"] for line in found)
    assert all(line["info/episode/l"] == line["episode/length"] for line in found)
    assert not any("info/episode/t" in line for line in found)


def test_a_number_that_is_missing_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    settings = [*GOAL, "env.info=[energy,enregy,name]", "training.learning_starts=1000"]
    run = reverie.train(overrides=settings, env="goals:Goal-v0", total_timesteps=40, run_dir="missing")
    warned = "env.info=[enregy,name]: not found among the numbers in info at the first episode's last step"
    assert capfd.readouterr().err.count(warned) == 1
    assert all("info/energy" in line and "info/enregy" not in line for line in episodes_of(run.metrics()))


def test_environments_without_metrics_decline_them() -> None:
    atari = EnvConfig(suite=Suite.atari, info=["lives"])
    with pytest.raises(reverie.UserError, match=r"env.info=\[lives\] is not supported by env=atari"):
        validate_env(atari)
    with pytest.raises(reverie.UserError, match=r"env.info.*workflow=population"):
        reverie.train(overrides=[*POPULATION, "env.info=[success]"])
    with pytest.raises(reverie.UserError, match=r"env.info must be a list such as \[a,b\], got `success`"):
        reverie.train(overrides=[*GOAL, "env.info=success"])


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1),
        (np.bool_(False), 0),
        (3, 3),
        (np.array([2.5]), 2.5),
        (torch.tensor(1.5, requires_grad=True), 1.5),
        ("1", None),
        (np.zeros(2), None),
        (None, None),
        (np.inf, None),
    ],
)
def test_what_counts_as_a_number(value: Any, number: float | None) -> None:
    info = {"a": value, "b": {"c": value}, "b/d": value}
    found = numbers_of(info, ["a", "b/c", "b/d", "a/b", "none", "b"])
    assert found == ({} if number is None else dict.fromkeys(["a", "b/c", "b/d"], number))
    assert numbers_of(None, ["a"]) == {}


def test_the_achievements_of_crafter_are_numbers() -> None:
    pytest.importorskip("crafter")
    env = make_single(EnvConfig(suite=Suite.crafter, action_repeat=1))
    env.reset(seed=0)
    *_, info = env.step(0)
    assert numbers_of(info, ["achievements/collect_wood", "achievements/fly"]) == {
        "achievements/collect_wood": 0
    }
    env.close()


class Lookups(dict[str, Any]):
    """Counts how often it is read."""

    count = 0

    def __contains__(self, key: object) -> bool:
        Lookups.count += 1
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        Lookups.count += 1
        return super().get(key, default)

    def __iter__(self) -> Any:
        raise AssertionError("the work would grow with the size of the dict")

    keys = items = values = __iter__


class Talkative(gymnasium.Env[Any, Any]):
    """Returns a large info in each step."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        info = Lookups({str(number): 0.0 for number in range(1000)})
        return np.zeros(2, np.float32), 0.0, self.time == 100, False, info


def test_an_info_is_read_only_at_the_end_of_an_episode_and_by_name() -> None:
    gymnasium.register("Talkative-v0", entry_point=Talkative, disable_env_checker=True)  # pyright: ignore[reportArgumentType]
    config = EnvConfig(suite=Suite.gymnasium, id="Talkative-v0", action_repeat=1)
    environment = make_environment(config, 0)
    environment.reset()
    action = np.eye(2, dtype=np.float32)[:1]
    for _ in range(99):
        environment.step(action)
    assert Lookups.count == 0
    assert environment.step(action).is_last.all()
    # Two lookups for each of the four detected names.
    assert Lookups.count == 8
    environment.close()
    gymnasium.registry.pop("Talkative-v0")
