"""The probe of Pong with networks that win, and rejected requests."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.pong_probe.command import main
from benchmarks.pong_probe.probe import play, probe_episodes
from reverie.envs import EnvConfig, make_environment

from ..runs.helpers import error_of
from ..workflows.tiny import tiny_workflow

Probe = Callable[..., None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Probe:
    def call(*arguments: str) -> None:
        monkeypatch.setattr("sys.argv", ["pong_probe", "device=cpu", *arguments])
        main()

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
    found = probe_episodes(workflow, play(workflow, env, 2, 0), 0, 0)
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
