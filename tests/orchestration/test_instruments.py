"""The loop calls each `Instrument` when it is due, passes it every episode, and saves its state."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from reverie.envs.episodes import Episode
from reverie.orchestration.instruments import Instrument, Run, instruments_of
from reverie.utils.timestep import TimeStep

from ..runs.helpers import CATCH, CATCH_STEPS, metrics_of, resume, saved_loop, start

COUNTED = "instruments/episodes"


class EpisodeCount(Instrument):
    """Counts episodes and logs their number."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, 100, self._log)
        self.count = 0

    def add(self, run: Run, time_step: TimeStep, envs: Any, ended: list[Episode]) -> None:
        self.count += len(ended)

    def state_dict(self) -> dict[str, Any]:
        return {"episode_count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["episode_count"]

    def _log(self, run: Run) -> None:
        run.reports.writer.scalars(run.step, {COUNTED: self.count})


@pytest.mark.parametrize(
    ("interval", "at_end", "due"),
    [(10, False, [12, 20, 32]), (10, True, [12, 20, 32, 36]), (0, True, [36]), (0, False, [])],
)
def test_an_instrument_is_due_once_an_interval_and_at_the_end(
    interval: int, at_end: bool, due: list[int]
) -> None:
    training = SimpleNamespace(total_timesteps=36)
    run: Any = SimpleNamespace(config=SimpleNamespace(training=training), step=0, guard=MagicMock())
    acted = []
    instrument = Instrument(run, interval, lambda run: acted.append(run.step), at_end=at_end)
    for run.step in range(0, 40, 4):
        if instrument.is_due(run):
            instrument(run)
    assert acted == due


def test_an_instrument_of_ones_own_sees_all_episodes_also_of_those_before_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "reverie.orchestration.world_model_orchestrator.instruments_of",
        lambda run: [EpisodeCount(run), *instruments_of(run)],
    )
    run_dir = start(tmp_path / "run", *CATCH, "training.total_timesteps=120")
    resume(run_dir, "training.total_timesteps=240")
    counted = {line["step"]: line[COUNTED] for line in metrics_of(run_dir) if COUNTED in line}
    ended = [line["step"] for line in metrics_of(run_dir) if "episode/return" in line]
    assert counted == {step: sum(each <= step for each in ended) for step in (100, 200)}
    assert counted[200] > counted[100] > 0
    assert saved_loop(run_dir, 240)["episode_count"] == len(ended) == 4 * (240 // 4 // CATCH_STEPS)


def test_a_target_logs_no_mean_before_the_first_episode_ends(tmp_path: Path) -> None:
    brief = ("training.log_interval=8", "training.total_timesteps=32", "training.target_return=2")
    lines = metrics_of(start(tmp_path / "run", *CATCH, *brief))
    logged = {line["step"]: line.get("recent/return") for line in lines if "speed/steps_per_second" in line}
    assert list(logged) == [8, 16, 24, 32]
    assert [logged[step] for step in (8, 16, 24)] == [None] * 3 and logged[32] is not None


def test_a_run_of_another_game_saves_no_games_of_pong(catch_run: Path, pong_run: Path) -> None:
    assert "last_games" not in saved_loop(catch_run, 300)
    assert saved_loop(pong_run, 60)["last_games"].shape == (0, 2)
