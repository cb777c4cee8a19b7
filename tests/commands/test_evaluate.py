"""Evaluation of a checkpoint: numbers, reproducibility, video, and rejected requests."""

import itertools
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from omegaconf import OmegaConf
from PIL import Image, ImageSequence

from reverie import pretrained
from reverie.checkpoints.checkpoint import latest_checkpoint
from reverie.checkpoints.run_folder import load_run
from reverie.commands import evaluate as module
from reverie.config.dreamer import DreamerTrainConfig
from reverie.envs import EnvConfig, make_environment
from reverie.envs.episodes import Episode, EpisodeTracker
from reverie.envs.registered import register_maker
from reverie.orchestration.dreamer.recipe import build_workflow
from reverie.orchestration.evaluation import Evaluation, evaluate
from reverie.utils.errors import UserError
from reverie.utils.seeding import named_seed
from reverie.utils.timestep import ActionSpec, ArraySpec, EnvSpec, TimeStep
from reverie.workflows.world_models import DreamerWorkflow
from reverie.workflows.world_models.dreamer import DreamerEvalPolicy

from ..runs.helpers import CATCH_STEPS, differing, error_of, files_in

Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that calls `reverie-evaluate` with arguments in this process."""

    def call(*arguments: str) -> None:
        monkeypatch.setattr("sys.argv", ["reverie-evaluate", *arguments])
        module.main()

    return call


@pytest.fixture
def result_of(command: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """Return the output of `reverie-evaluate` and require one line of JSON."""

    def call(run: Path, *arguments: str) -> dict[str, Any]:
        command(f"run={run}", "device=cpu", *arguments)
        shown = capsys.readouterr()
        assert (shown.out.count("\n"), shown.err) == (1, "")
        return json.loads(shown.out)

    return call


def workflow_of(run_dir: Path) -> tuple[DreamerWorkflow, EnvConfig]:
    run = load_run(str(run_dir))
    assert isinstance(run, DreamerTrainConfig)
    with closing(make_environment(run.env, run.seed)) as environment:
        workflow = build_workflow(run, environment.spec)
    workflow.load_state_dict(latest_checkpoint(run_dir).model(workflow.device))
    return workflow, run.env


def test_one_line_of_json_tells_every_return(cartpole_run: Path, result_of: Evaluate) -> None:
    before = files_in(cartpole_run)
    result = result_of(cartpole_run, "episodes=5", "seed=3")
    told = [result[key] for key in ("run", "step", "environment", "policy", "seed")]
    assert told == [str(cartpole_run), 300, "CartPole-v1", "sample", 3]
    assert len(result["returns"]) == 5
    # CartPole gives a reward of 1 per step.
    assert result["returns"] == result["lengths"]
    assert all(8 <= length <= 500 for length in result["lengths"])
    assert result["mean"] == pytest.approx(sum(result["returns"]) / 5)
    variance = sum((r - result["mean"]) ** 2 for r in result["returns"]) / 4
    assert result["standard_error"] == pytest.approx((variance / 5) ** 0.5)
    assert files_in(cartpole_run) == before


def test_a_terminal_gets_a_sentence_and_json_if_asked(
    cartpole_run: Path,
    tmp_path: Path,
    command: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    arguments = (f"run={cartpole_run}", "device=cpu", "episodes=2")
    command(*arguments, "json=true")
    result = json.loads(capsys.readouterr().out)
    video = tmp_path / "play.gif"
    command(*arguments, f"video={video}")
    low, high = (result["mean"] + side * 1.96 * result["standard_error"] for side in (-1, 1))
    interval = f"Mean return {result['mean']:.4g} (95 % interval {low:.4g} to {high:.4g})"
    assert capsys.readouterr().out == (
        f"{interval} over 2 episodes of CartPole-v1. Video of the first: {video}.\n"
    )
    command(f"run={cartpole_run}", "device=cpu", "episodes=1")
    assert re.fullmatch(r"Mean return \d+ over 1 episode of CartPole-v1\.\n", capsys.readouterr().out)


def test_a_seed_gives_the_same_episodes_and_another_seed_others(
    cartpole_run: Path, result_of: Evaluate
) -> None:
    first, second, other = (result_of(cartpole_run, "episodes=6", f"seed={seed}") for seed in (3, 3, 4))
    assert first == second
    assert first["returns"] != other["returns"]


def test_the_mode_plays_differently_from_a_sample(cartpole_run: Path, result_of: Evaluate) -> None:
    sample, mode = (
        result_of(cartpole_run, "episodes=6", f"policy={policy}") for policy in ("sample", "mode")
    )
    assert (sample["policy"], mode["policy"]) == ("sample", "mode")
    assert sample["returns"] != mode["returns"]
    assert mode == result_of(cartpole_run, "episodes=6", "policy=mode")


def test_the_newest_checkpoint_is_played(cartpole_run: Path, tmp_path: Path, result_of: Evaluate) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(cartpole_run, copy)
    shutil.rmtree(copy / "checkpoints" / "step_000000300")
    assert result_of(copy, "episodes=1")["step"] == 150


def test_the_default_seed_plays_no_episode_of_training(
    cartpole_run: Path, result_of: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load_run(str(cartpole_run))
    # A run has the same default.
    assert run.seed == 0
    with closing(make_environment(run.env, run.seed)) as training:
        trained_on = training.reset().observation["vector"]
    seen: list[np.ndarray] = []
    act = DreamerEvalPolicy.act

    def watched(policy: DreamerEvalPolicy, step: TimeStep) -> np.ndarray:
        seen.append(step.observation["vector"])
        return act(policy, step)

    monkeypatch.setattr(DreamerEvalPolicy, "act", watched)
    result_of(cartpole_run, "episodes=1")
    assert not np.array_equal(seen[0], trained_on)


def test_a_run_from_a_gpu_is_played_on_a_cpu(cartpole_run: Path, tmp_path: Path, result_of: Evaluate) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(cartpole_run, copy)
    config = OmegaConf.load(copy / "config.yaml")
    config.device, config.precision, config.buffer.storage = "cuda", "bfloat16", "cuda"
    OmegaConf.save(config, copy / "config.yaml")
    expected = result_of(cartpole_run, "episodes=2")
    assert result_of(copy, "episodes=2") == expected | {"run": str(copy)}


def test_every_environment_plays_its_share_and_no_more(cartpole_run: Path) -> None:
    workflow, env = workflow_of(cartpole_run)
    env.num_envs = 4
    result = evaluate(workflow, env, episodes=6, seed=5)
    assert sorted(episode.env for episode in result.episodes) == [0, 0, 1, 1, 2, 3]
    assert result.episodes == first_episodes(
        workflow, env, share=[2, 2, 1, 1], seed=named_seed(5, "evaluate")
    )


def first_episodes(
    workflow: DreamerWorkflow, config: EnvConfig, share: list[int], seed: int
) -> list[Episode]:
    """Slow reference: play far too long, then take the first episodes of each environment."""
    policy, tracker = workflow.eval_policy(4, seed, True), EpisodeTracker(4)
    episodes: list[Episode] = []
    with closing(make_environment(config, seed)) as environment:
        arrival = environment.reset()
        while min(sum(episode.env == env for episode in episodes) for env in range(4)) < 4:
            episodes += tracker.add(arrival)
            arrival = environment.step(policy.act(arrival))
    return [e for i, e in enumerate(episodes) if sum(b.env == e.env for b in episodes[:i]) < share[e.env]]


def test_fewer_episodes_than_environments_start_only_those(cartpole_run: Path) -> None:
    workflow, env = workflow_of(cartpole_run)
    env.num_envs = 4
    result = evaluate(workflow, env, episodes=2, seed=5)
    assert sorted(episode.env for episode in result.episodes) == [0, 1]


class Fragile(CartPoleEnv):
    """Episodes of ten steps. A third step raises one of the given exceptions, until all are used up."""

    def __init__(self, faults: list[Exception]) -> None:
        super().__init__()
        self._count, self._faults = 0, faults

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._count = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self._count += 1
        if self._count == 3 and self._faults:
            raise self._faults.pop()
        observation, *_ = super().step(action)
        return observation, 1.0, self._count == 10, False, {}


def test_another_episode_replaces_one_whose_environment_failed(cartpole_run: Path) -> None:
    workflow, env = workflow_of(cartpole_run)
    faults: list[Exception] = [ConnectionError("the simulator lost its connection")]

    def make() -> Fragile:
        return Fragile(faults)

    env.id, env.num_envs = register_maker(make), 1
    assert [each.length for each in evaluate(workflow, env, 3, seed=1).episodes] == [10, 10, 10]
    assert faults == []


def test_evaluation_leaves_the_workflow_as_it_was(catch_run: Path) -> None:
    workflow, env = workflow_of(catch_run)
    with closing(make_environment(env, 0)) as environment:
        workflow.collect_step(environment.reset())
    online = workflow.world_model.rssm._state
    assert online is not None
    acting = {"deter": online.deter, "action": workflow._prev_action}
    before = clone({**acting, **workflow.state_dict()})
    evaluate(workflow, env, 4, seed=1)
    online = workflow.world_model.rssm._state
    assert online is not None
    acting = {"deter": online.deter, "action": workflow._prev_action}
    assert differing(before, {**acting, **workflow.state_dict()}) == set()


def clone(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: clone(value) for key, value in state.items()}
    if isinstance(state, list):
        return [clone(value) for value in state]
    return state.clone() if isinstance(state, torch.Tensor) else state


def test_the_recorded_episode_is_environment_0s_first(catch_run: Path) -> None:
    workflow, env = workflow_of(catch_run)
    result = evaluate(workflow, env, 8, seed=2, record=True)
    with closing(make_environment(env, named_seed(2, "evaluate"))) as environment:
        first = environment.reset().observation["image"]
    assert result.frames is not None
    assert result.frames.shape == (CATCH_STEPS + 1, 64, 64, 3)
    np.testing.assert_array_equal(result.frames[0], first[0])
    assert evaluate(workflow, env, 4, seed=2).frames is None


@pytest.mark.parametrize("name", ["out.mp4", "new folder/out.gif"])
def test_a_video_shows_the_first_episode(
    name: str, catch_run: Path, tmp_path: Path, result_of: Evaluate
) -> None:
    path = tmp_path / name
    result = result_of(catch_run, "episodes=5", f"video={path}")
    assert result["lengths"] == [CATCH_STEPS] * 5
    assert set(result["returns"]) <= {-1.0, 1.0}
    if path.suffix == ".gif":
        with Image.open(path) as video:
            assert (len(list(ImageSequence.Iterator(video))), video.size) == (CATCH_STEPS + 1, (256, 256))
    else:
        with av.open(str(path)) as video:
            frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
        assert [frame.shape for frame in frames] == [(256, 256, 3)] * (CATCH_STEPS + 1)
    assert {p.name for p in path.parent.iterdir()} == {path.name}


def test_a_video_does_not_change_what_is_played(catch_run: Path, tmp_path: Path, result_of: Evaluate) -> None:
    assert result_of(catch_run, "episodes=4", f"video={tmp_path / 'out.gif'}") == result_of(
        catch_run, "episodes=4"
    )


@pytest.mark.parametrize("folder", ["", "missing/"])
def test_a_video_that_could_not_be_written_is_refused_before_play(
    folder: str,
    catch_run: Path,
    tmp_path: Path,
    command: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    video = f"{tmp_path}/{folder}{'a' * 300}.mp4"
    message = error_of(capsys, lambda: command(f"run={catch_run}", f"video={video}"))
    assert message == f"video={video} cannot be written: File name too long."
    message = error_of(capsys, lambda: command(f"run={catch_run}", "video=/proc/out.mp4"))
    assert message == "video=/proc/out.mp4 cannot be written: No such file or directory."
    (tmp_path / "folder.mp4").mkdir()
    message = error_of(capsys, lambda: command(f"run={catch_run}", f"video={tmp_path}/folder.mp4"))
    assert message.endswith("folder.mp4 cannot be written: it is a folder.")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.mp4"]


def test_an_episode_is_cut_after_max_steps_unless_it_ends_before(
    cartpole_run: Path, result_of: Evaluate
) -> None:
    assert result_of(cartpole_run, "episodes=3", "max_steps=5")["lengths"] == [5, 5, 5]
    whole = result_of(cartpole_run, "episodes=3")
    far = 1_000_000_000
    assert result_of(cartpole_run, "episodes=3", f"max_steps={far}") == whole | {"max_steps": far}


def test_ctrl_c_answers_with_what_was_played(
    catch_run: Path,
    tmp_path: Path,
    command: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    act, calls = DreamerEvalPolicy.act, iter(range(1, 10**6))

    def interrupted(policy: DreamerEvalPolicy, step: TimeStep) -> np.ndarray:
        if next(calls) == CATCH_STEPS + 4:
            os.kill(os.getpid(), signal.SIGINT)
        return act(policy, step)

    monkeypatch.setattr(DreamerEvalPolicy, "act", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended:
        command(f"run={catch_run}", "device=cpu", "episodes=99999999999", f"video={tmp_path / 'out.gif'}")
    assert (ended.value.code, signal.getsignal(signal.SIGINT)) == (130, before)
    result = json.loads(capsys.readouterr().out)
    # These are four environments.
    assert result["lengths"] == [CATCH_STEPS] * 4
    # One action starts an episode, and three were executed.
    assert result["open_lengths"] == [3] * 4
    assert result["open_returns"] == [0.0] * 4
    with Image.open(tmp_path / "out.gif") as video:
        assert len(list(ImageSequence.Iterator(video))) == CATCH_STEPS + 1


def test_stopping_before_the_first_episode_shows_the_open_episodes(
    cartpole_run: Path,
    command: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    act = DreamerEvalPolicy.act

    def interrupted(policy: DreamerEvalPolicy, step: TimeStep) -> np.ndarray:
        signal.raise_signal(signal.SIGINT)
        return act(policy, step)

    monkeypatch.setattr(DreamerEvalPolicy, "act", interrupted)
    monkeypatch.setattr(module, "_PROGRESS_SECONDS", 0.0)
    with pytest.raises(SystemExit):
        command(f"run={cartpole_run}", "device=cpu")
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert [result[key] for key in ("returns", "mean", "open_returns", "open_lengths")] == [
        [],
        None,
        [1.0],
        [1],
    ]
    assert shown.err.splitlines()[-1].startswith("finished 0 of 20 episodes, the current one has 1 step")


def test_mean_and_standard_error_to_the_number() -> None:
    episodes = [Episode(env=0, episode_return=value, length=1) for value in (1.0, 2.0, 3.0, 4.0)]
    result = Evaluation(episodes, [], None)
    assert result.mean == 2.5
    # The value is sqrt(5 / 3) / sqrt(4).
    assert result.standard_error == pytest.approx(0.6454972243679028)
    assert Evaluation(episodes[:1], [], None).standard_error is None


# Each kind of mistake: the arguments after run=<a real run>, and all required parts of the message.
MISTAKES = {
    "unknown key": (["episode=3"], ["episode=3 is not a setting", "episodes=", "Did you mean `episodes`?"]),
    "no value": (["video"], ["video is not a setting", "video="]),
    "flag": (["--fast"], ["--fast is not a setting", "run=, episodes=, checkpoint=, max_steps=, seed=,"]),
    "interpolation": (
        ["video=${run}.mp4"],
        ["video=${run}.mp4: reverie-evaluate accepts only plain values, not ${...} or ???."],
    ),
    "a value that is none": (
        ["video=???"],
        ["video=???: reverie-evaluate accepts only plain values, not ${...} or ???."],
    ),
    "null for a whole number": (["episodes=null"], ["a whole number, got `null`. Omit it for 20."]),
    "text for a whole number": (["episodes=many"], ["episodes must be a whole number, got `many`."]),
    "float for a whole number": (["episodes=2.5"], ["episodes must be a whole number, got `2.5`."]),
    "no episode": (["episodes=0"], ["episodes must be at least 1, got 0."]),
    "no step": (["max_steps=0"], ["max_steps must be at least 1, got 0."]),
    "negative seed": (["seed=-1"], ["seed must be in [0, 2**32), got -1."]),
    "unknown policy": (["policy=best"], ["policy must be one of sample, mode, got `best`."]),
    "unknown device": (["device=gpu"], ["device must be one of auto, cpu, cuda, got `gpu`."]),
    "unknown kind of video": (["video=out.avi"], ["video=out.avi", ".mp4 or .gif", "Use video=out.mp4."]),
    "video without a name": (["video="], ["video= has no value. Write video=VALUE."]),
}


@pytest.mark.parametrize(("arguments", "parts"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_gives_one_line_and_exit_code_2(
    arguments: list[str],
    parts: list[str],
    cartpole_run: Path,
    tmp_path: Path,
    command: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    message = error_of(capsys, lambda: command(f"run={cartpole_run}", *arguments))
    assert [part for part in parts if part not in message] == [], message
    assert list(tmp_path.iterdir()) == []


def test_help_tells_every_setting_with_its_default_and_what_it_takes(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command("run=nowhere", "--help")
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = [line.split(maxsplit=1) for line in shown.out.partition("defaults:\n")[2].splitlines()]
    assert [pair for pair, _ in lines] == [
        *(
            "run=VALUE",
            "episodes=20",
            "checkpoint=newest",
            "max_steps=null",
            "seed=0",
            "policy=sample",
            "video=null",
            "device=auto",
            "json=false",
            "trust=false",
        )
    ]
    told = dict(lines)
    assert told["episodes=20"] == "Number of episodes. A whole number."
    assert told["device=auto"].endswith("One of auto, cpu, cuda.")


def test_an_environment_that_breaks_has_no_return(
    cartpole_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, whole = itertools.count(), CartPoleEnv.step

    def step(env: CartPoleEnv, action: Any) -> Any:
        if next(steps) == 9:
            raise ArithmeticError("it broke")
        return whole(env, action)

    monkeypatch.setattr(CartPoleEnv, "step", step)
    with pytest.raises(UserError, match="it broke"):
        module.evaluate_run(module.EvaluateConfig(run=str(cartpole_run), episodes=4))


def test_a_missing_run_is_named(
    cartpole_run: Path, tmp_path: Path, command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(capsys, command).startswith("run is missing. Write run=VALUE. Run folder, ")
    wrong = cartpole_run.with_name("rum")
    message = error_of(capsys, lambda: command(f"run={wrong}"))
    assert message == f"run={wrong} is not a folder. Did you mean `{cartpole_run}`?"
    repair = "Pass the folder of a run, e.g. run=experiments/<run>."
    assert error_of(capsys, lambda: command("run=nosuch")) == f"run=nosuch is not a folder. {repair}"
    assert (
        error_of(capsys, lambda: command(f"run={tmp_path}"))
        == f"run={tmp_path} is not a run: it has no config.yaml. {repair}"
    )
    shutil.copy(cartpole_run / "config.yaml", tmp_path)
    assert error_of(capsys, lambda: command(f"run={tmp_path}")).startswith(
        f"{tmp_path} has no checkpoint yet"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_cuda_is_refused_where_there_is_none(
    cartpole_run: Path, command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "device=cuda" in error_of(
        capsys, lambda: command(f"run={cartpole_run}", "device=cuda", "episodes=1")
    )


def test_a_folder_whose_name_looks_like_a_number_is_that_folder(
    cartpole_run: Path, tmp_path: Path, result_of: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("007", "1_0"):
        shutil.copytree(cartpole_run, tmp_path / name)
        assert result_of(Path(name), "episodes=1")["run"] == name


def test_a_video_of_what_has_no_pictures_is_refused(tmp_path: Path) -> None:
    vector = {"vector": ArraySpec((3,), np.dtype(np.float32))}
    env = EnvSpec("Blind-v0", vector, ActionSpec(2, True), num_envs=1, action_repeat=1)
    with pytest.raises(UserError, match="Blind-v0 has no image observation, and no `rgb_array`"):
        module._check_video(tmp_path / "out.mp4", env)
    module._check_video(tmp_path / "out.mp4", replace(env, renders=True))


def test_weights_next_to_the_config_of_other_networks_are_refused_by_the_name_that_was_typed(
    empty_folder: Path, capsys: pytest.CaptureFixture[str], command: Callable[..., None]
) -> None:
    shutil.copytree(Path(pretrained.__file__).parent / "cartpole", "moved")
    config = Path("moved/config.yaml")
    config.write_text(config.read_text().replace("units: 64", "units: 32"))
    message = error_of(capsys, lambda: command("run=moved", "device=cpu"))
    assert message.startswith("run=moved does not fit the networks: ") and " instead of " in message
    assert message.endswith("The config.yaml in their folder belongs to different networks.")
