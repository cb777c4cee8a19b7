"""`reverie-probe` with networks that win, and rejected requests."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from reverie.commands import probe
from reverie.commands.command_line import run_from_command_line
from reverie.commands.train import train
from reverie.envs import EnvConfig, make_environment
from reverie.orchestration.pong import probe as pong_probe
from reverie.utils.durable_io import read_tensors

from ..runs.helpers import error_of, start
from ..workflows.tiny import tiny_workflow

Probe = Callable[..., None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Probe:
    def call(*arguments: str) -> None:
        monkeypatch.setattr("sys.argv", ["reverie-probe", "device=cpu", *arguments])
        probe.main()

    return call


def test_networks_that_won_know_where_the_ball_is(command: Probe, capsys: pytest.CaptureFixture[str]) -> None:
    command("run=pretrained:pong", "episodes=2", "max_steps=300")
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 356679 and len(found["returns"]) == len(found["lengths"]) == 2
    for belief in ("after_0_imagined_steps", "after_5_imagined_steps"):
        assert found[belief]["r2"]["ball_x"] > 0.5 and found[belief]["r2"]["ball_y"] > 0.5
        assert found[belief]["drawn"] > 0.7
        assert found[belief]["auc"]["won_above_none"] > 0.95


def test_a_decoder_that_has_learned_nothing_draws_no_ball() -> None:
    env = EnvConfig(num_envs=1, max_episode_frames=800)
    with closing(make_environment(env, 0)) as environment:
        workflow = tiny_workflow(environment.spec.observation)
    found = pong_probe.probe_episodes(workflow, pong_probe.play(workflow, env, 2, 0), 0, 0)
    # The input is noise. A trained decoder draws nine of ten.
    assert found["drawn"] < 0.05


def test_what_cannot_be_probed_is_refused(
    command: Probe, capsys: pytest.CaptureFixture[str], tmp_path: Path, catch_run: Path
) -> None:
    assert error_of(capsys, command).startswith("run is missing")
    assert "max_steps must be > imagined_steps=5" in error_of(
        capsys, lambda: command("run=pretrained:pong", "max_steps=5")
    )
    assert "this run plays catch" in error_of(capsys, lambda: command(f"run={catch_run}"))


def test_a_probe_in_training_is_logged_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reverie.orchestration.pong.probe.BRIEF_STEPS", 120)
    settings = ("device=cpu", "compile=none", "training.total_timesteps=48", "env.num_envs=2")
    small = ("buffer.capacity=2000", "buffer.chunk_length=32", "training.learning_starts=34")
    begun = ("model=size1m", "model.strided=true", "model.init=pretrained:pong")
    objective = "world_model.objective=reconstruction"
    common = ("experiment=dreamer_ataripong", *begun, objective, *settings, *small, "logger=plain")
    with_probe = start(tmp_path / "probed", *common, "training.probe_interval=40")
    without = start(tmp_path / "plain", *common)
    lines = [json.loads(line) for line in (with_probe / "metrics.jsonl").read_text().splitlines()]
    [tags] = [line for line in lines if "probe/after_0/ball_x_r2" in line]
    assert tags["step"] == 40 and tags["probe/after_0/drawn"] > 0.3 and tags["probe/after_5/drawn"] > 0.3
    models = [
        read_tensors(next(run.glob("checkpoints/step_*/model.safetensors"))) for run in (with_probe, without)
    ]
    assert all(torch.equal(models[0][name], value) for name, value in models[1].items())


def test_a_probe_of_another_game_is_refused_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    message = error_of(
        capsys,
        lambda: run_from_command_line(train, ["experiment=dreamer_catch", "training.probe_interval=100"]),
    )
    assert message.startswith("training.probe_interval=100: a probe reads the memory of Atari Pong")
