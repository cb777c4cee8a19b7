"""`reverie-probe` with networks that won, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reverie.commands import probe

from ..runs.helpers import error_of

Probe = Callable[..., None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Probe:
    def call(*arguments: str) -> None:
        monkeypatch.setattr("sys.argv", ["reverie-probe", "device=cpu", *arguments])
        probe.main()

    return call


def test_networks_that_won_know_where_the_ball_is(command: Probe, capsys: pytest.CaptureFixture[str]) -> None:
    command("run=pretrained:pong", "episodes=4", "max_steps=300")
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 356679 and len(found["returns"]) == len(found["lengths"]) == 4
    for belief in ("after_0_imagined_steps", "after_5_imagined_steps"):
        assert found[belief]["r2"]["ball_x"] > 0.5 and found[belief]["r2"]["ball_y"] > 0.5
        assert found[belief]["drawn"] > 0.7
        assert found[belief]["auc"]["won_above_none"] > 0.95


def test_what_cannot_be_probed_is_refused(
    command: Probe, capsys: pytest.CaptureFixture[str], tmp_path: Path, catch_run: Path
) -> None:
    assert error_of(capsys, command).startswith("run is missing")
    assert "max_steps must be > imagined_steps=5" in error_of(
        capsys, lambda: command("run=pretrained:pong", "max_steps=5")
    )
    assert "this run plays catch" in error_of(capsys, lambda: command(f"run={catch_run}"))
