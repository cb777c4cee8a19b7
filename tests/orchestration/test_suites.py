"""Runs in the DeepMind Control Suite and in Crafter are repeated, killed, resumed and played."""

import hashlib
import shutil
import signal
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from reverie_play import DreamSession, action_names, key_map
from reverie_play.session import choices_of, dreamer_with_pictures

from reverie.config.schema import Device
from reverie.envs import EnvConfig, make_environment
from reverie.envs.config import Observations
from reverie.orchestration.trained import load_agent

from ..envs.test_suites import control, crafter, random_actions
from ..runs.fresh import in_a_fresh_process
from ..runs.helpers import SMALL, error_of, identity, metrics_of, resume, start
from ..runs.warm import Server

SHORT = (
    *SMALL,
    "training.learning_starts=8",
    "training.log_interval=10",
    "training.checkpoint_interval=20",
    "training.video_interval=0",
    "training.total_timesteps=40",
    "buffer.capacity=200",
)
RUNS = {
    "proprio": ("experiment=paper_dmc_proprio", *SHORT, "env.num_envs=1"),
    "both": ("experiment=dreamer", "env=dmc", "env.observations=both", *SHORT),
    "crafter": ("experiment=paper_crafter", *SHORT, "buffer.memory_budget_gib=1"),
}


def digest(config: EnvConfig, steps: int, spared: int) -> str:
    """Return a hash of all records of a random policy, after allocating `spared` objects."""
    spare = [object() for _ in range(spared)]
    found = hashlib.sha256()
    with closing(make_environment(config, run_seed=3)) as environment:
        action = environment.spec.action
        arrivals = [environment.reset()]
        arrivals += map(environment.step, random_actions(steps, action.size, action.is_discrete))
    for each in arrivals:
        parts = [each.observation[key] for key in sorted(each.observation)]
        for array in (*parts, each.reward, each.is_last, each.is_terminal):
            found.update(array.tobytes())
    assert len(spare) == spared
    return found.hexdigest()


PLAYED = {
    "walker": (control(observations=Observations.both), 10),
    # The model of this task is drawn when it is made.
    "lqr": (control("lqr_lqr_2_1"), 50),
    # The ground of this task is drawn at each start.
    "quadruped": (control("quadruped_escape"), 10),
    # Creatures are removed, and several episodes end.
    "crafter": (crafter(), 400),
}


def digests(spared: int) -> dict[str, str]:
    return {name: digest(config, steps, spared) for name, (config, steps) in PLAYED.items()}


def test_seed_and_actions_give_the_same_records_in_every_process() -> None:
    one, other = (in_a_fresh_process(partial(digests, spared)) for spared in (0, 12_345))
    assert one == other
    assert len({*one.values()}) == len(PLAYED)


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_goes_on_bit_for_bit(name: str, tmp_path: Path, server: Server) -> None:
    """The checkpoint is in the middle of an episode, whose physics and random state are replayed."""
    unbroken = start(tmp_path / "unbroken", *RUNS[name])
    killed = tmp_path / "killed"
    process = server.start("train", *RUNS[name], f"run_dir={killed}")
    process.wait_until(lambda: (killed / "checkpoints" / "step_000000020").exists())
    process.send(signal.SIGKILL)
    assert process.end().code == -signal.SIGKILL
    # It was killed before its last checkpoint, or that one is discarded.
    shutil.rmtree(killed / "checkpoints" / "step_000000040", ignore_errors=True)
    resume(killed)
    assert identity(killed) == identity(unbroken)
    assert identity(killed)["step"] == "40"
    assert "could not be restored" not in (killed / "train.log").read_text()
    repeat = 1 if name == "crafter" else 2
    logged = [line for line in metrics_of(killed) if "env_steps" in line]
    assert [line["step"] for line in logged] == [10, 20, 30, 40]
    assert all(line["env_steps"] == repeat * line["step"] for line in logged)


@pytest.mark.parametrize("name", ["both", "crafter"])
def test_a_run_is_played_and_its_game_goes_back_to_the_start_of_the_dream(name: str, tmp_path: Path) -> None:
    run_dir = start(tmp_path / "run", *RUNS[name], "training.total_timesteps=12")
    run, agent, _ = load_agent(str(run_dir), Device.cpu)
    workflow, image = dreamer_with_pictures(agent, "run")
    names = action_names(run.env, len(choices_of(workflow.env.action)))
    assert len(names) == (17 if name == "crafter" else 13)
    assert len(key_map(names)) == 10
    with closing(DreamSession(workflow, run.env, image, 45)) as session:
        session.restart(0)
        session.step(1)
        first = session.begin_dream()
        played = [session.step(action).pictures for action in (2, None, 3)]
        assert np.array_equal(session.back().pictures, first.pictures)
        assert np.array_equal(session.step(2).pictures[:, :64], played[0][:, :64])
        assert played[0][:, :64].std() > 10


def test_a_missing_package_ends_a_run_before_it_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "crafter", None)
    run_dir = tmp_path / "run"
    message = error_of(capsys, lambda: start(run_dir, "env=crafter", *SHORT))
    command = "pip install -c constraints.txt -e '.[crafter]'"
    assert message.strip() == f"env=crafter needs the package crafter: {command}."
    assert not run_dir.exists()
