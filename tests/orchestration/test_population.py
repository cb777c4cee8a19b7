"""Real runs of a small population: their output, their checkpoints, and their continuation."""

import json
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie.checkpoints.checkpoint import latest_checkpoint
from reverie.checkpoints.run_folder import load_run
from reverie.commands.command_line import run_from_command_line
from reverie.commands.evaluate import EvaluateConfig, evaluate_run
from reverie.commands.train import train
from reverie.envs import make_environment
from reverie.testing.fingerprint import fingerprint
from reverie.workflows.population.members import Members
from reverie.workflows.population.td3 import TD3

from ..runs.helpers import POPULATION, checkpoint_at, metrics_of, resume, saved_records, saved_steps, start
from ..runs.s3_server import S3_MIRROR, S3Server
from ..runs.warm import Process, Server

STEPS = 20
"""Steps per episode."""


def lineage_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "lineage.jsonl").read_text().splitlines()]


def generations_of(run_dir: Path) -> list[dict[str, float]]:
    return [line for line in metrics_of(run_dir) if "population/generation" in line]


def model_of(run_dir: Path) -> dict[str, Any]:
    return latest_checkpoint(run_dir).model(torch.device("cpu"))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tmp_path_factory.mktemp("runs") / "whole", *POPULATION, "training.keep_checkpoints=9")


def test_every_step_of_every_episode_is_counted(whole_run: Path) -> None:
    lines = generations_of(whole_run)
    # One episode per member, and one of the learner with noise.
    per_generation = (4 + 1) * STEPS
    assert [line["step"] for line in lines] == [per_generation * number for number in (1, 2, 3, 4)]
    assert [line["population/generation"] for line in lines] == [1, 2, 3, 4]


def test_the_replay_holds_whole_episodes_of_everybody(whole_run: Path) -> None:
    first = saved_records(whole_run, 5 * STEPS, "is_first")
    assert len(first) == 5 * (STEPS + 1)
    assert np.flatnonzero(first).tolist() == [(STEPS + 1) * episode for episode in range(5)]
    full = saved_records(whole_run, 20 * STEPS, "is_first")
    assert len(full) <= 400
    # Pendulum episodes are only truncated.
    assert not saved_records(whole_run, 20 * STEPS, "is_terminal").any()


def test_no_member_learns_before_the_replay_is_ready(whole_run: Path) -> None:
    ready = [line["population/is_ready"] for line in generations_of(whole_run)]
    updates = [line["train/updates"] for line in generations_of(whole_run)]
    assert (ready, updates) == ([1, 1, 1, 1], [3, 6, 9, 12])


def test_the_lineage_tells_of_every_member(whole_run: Path) -> None:
    lines = lineage_of(whole_run)
    assert [(line["generation"], line["member"]) for line in lines] == [
        (generation, member) for generation in range(4) for member in range(4)
    ]
    assert all(line["operators"] == ["initial"] for line in lines[:4])
    later = [line["operators"][0] for line in lines[4:]]
    assert later.count("learner") == 3 and "elite" in later and "injection" in later


def test_metrics_agree_with_the_lineage(whole_run: Path) -> None:
    lineage = lineage_of(whole_run)
    ever = -np.inf
    for number, line in enumerate(generations_of(whole_run)):
        fitness = [each["fitness"] for each in lineage if each["generation"] == number]
        ever = max(ever, *fitness)
        assert line["population/fitness_best"] == max(fitness)
        assert line["population/fitness_mean"] == pytest.approx(np.mean(fitness))
        assert line["population/fitness_best_ever"] == ever


def test_the_best_policy_ever_is_saved_and_played(whole_run: Path) -> None:
    best = max(lineage_of(whole_run), key=lambda line: line["fitness"])
    model = model_of(whole_run)
    assert model["best"] == [best["fitness"], best["generation"], best["member"]]
    # The actor has the weights of its evaluation.
    for name, tensor in model["best_actor"].items():
        step = best["generation"] * 5 * STEPS
        if step:
            before = checkpoint_at(whole_run, step).model(torch.device("cpu"))
            then = before["members"]["networks"]["actor"][name][best["member"]]
            assert torch.equal(tensor[0], then)
    result, _ = evaluate_run(EvaluateConfig(run=str(whole_run), episodes=3))
    assert result["policy"] == "mode"
    returns = result["returns"]
    assert isinstance(returns, list) and len(returns) == 3 and result["lengths"] == [STEPS] * 3


def test_the_report_is_written(whole_run: Path) -> None:
    assert "<img" in (whole_run / "report.html").read_text()


def test_the_terminal_shows_a_block_for_every_generation(whole_run: Path) -> None:
    log = (whole_run / "train.log").read_text()
    for number in (1, 2, 3, 4):
        assert f"generation {number} of 4, step {number * 5 * STEPS}" in log
    assert re.search(r"memory   [\d.]+ MiB of [\d.]+ MiB", log) and "400 records" in log and "ready" in log


def test_elites_act_as_they_were_played(whole_run: Path) -> None:
    for number in (1, 2, 3):
        before, after = (
            checkpoint_at(whole_run, step).model(torch.device("cpu"))["members"]["networks"]["actor"]
            for step in (number * 5 * STEPS, (number + 1) * 5 * STEPS)
        )
        lines = [line for line in lineage_of(whole_run) if line["generation"] == number]
        fitness = [line["fitness"] for line in lines]
        elite = int(np.argmax(fitness))
        if elite == 0:
            # The learner is its own elite and continues learning.
            continue
        assert all(torch.equal(before[name][elite], after[name][elite]) for name in before)


def test_a_run_that_is_continued_is_the_unbroken_one(whole_run: Path, tmp_path: Path) -> None:
    half = start(tmp_path / "half", *POPULATION, "training.keep_checkpoints=9", "training.generations=2")
    resume(half, "training.generations=4")
    assert fingerprint(half) == fingerprint(whole_run)


def test_a_generation_that_was_not_finished_is_played_again(whole_run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(whole_run, broken)
    # After a crash in generation 3, its log lines exist.
    for step in saved_steps(broken)[2:]:
        shutil.rmtree(checkpoint_at(broken, step).folder)
    resume(broken)
    assert fingerprint(broken) == fingerprint(whole_run)


def killed_after_two_saves(process: Process, log: Path) -> None:
    before = log.read_text().count(": checkpoint ") if log.exists() else 0
    process.wait_until(lambda: log.exists() and log.read_text().count(": checkpoint ") >= before + 2)
    process.send(signal.SIGKILL)
    assert process.end().code == -signal.SIGKILL


def test_a_population_that_is_killed_again_and_again_ends_as_the_unbroken_one(
    tmp_path: Path, server: Server
) -> None:
    run_dir, arguments = tmp_path / "broken", [*POPULATION, "training.generations=25"]
    killed_after_two_saves(server.start("train", *arguments, f"run_dir={run_dir}"), run_dir / "train.log")
    first = len(generations_of(run_dir))
    killed_after_two_saves(server.start("train", f"resume={run_dir}"), run_dir / "train.log")
    assert 0 < first < len(generations_of(run_dir)) < 25
    resume(run_dir)
    unbroken = fingerprint(start(tmp_path / "unbroken", *arguments))
    assert fingerprint(run_dir) == unbroken and "lineage" in unbroken


@pytest.mark.parametrize(
    ("overrides", "per_generation", "updates", "operators"),
    [
        (("population.evolution=off",), 8, 6, {"initial", "learner"}),
        (("population.gradient=off",), 4, 0, {"initial", "elite", "clone", "crossover", "mutation"}),
        (("population.size=1", "population.exploration_episodes=5"), 6, 6, {"initial", "learner"}),
    ],
    ids=["shared replay alone", "evolution alone", "TD3 alone"],
)
def test_controls(
    overrides: Sequence[str], per_generation: int, updates: int, operators: set[str], tmp_path: Path
) -> None:
    run = start(tmp_path / "run", *POPULATION, "training.generations=2", *overrides)
    lines = generations_of(run)
    assert [line["step"] for line in lines] == [per_generation * STEPS, 2 * per_generation * STEPS]
    assert lines[-1]["train/updates"] == updates
    assert {name for line in lineage_of(run) for name in line["operators"]} <= operators
    assert ("train/loss/critic" in lines[-1]) == (updates > 0)


def test_the_fitness_is_the_return_of_episodes_without_noise(tmp_path: Path) -> None:
    run = start(tmp_path / "run", *POPULATION, "training.generations=1", "population.episodes=2")
    rewards = saved_records(run, 9 * STEPS, "reward").reshape(9, STEPS + 1)
    returns = rewards.sum(1, dtype=np.float64)
    # Episode 2 is the learner's, with noise.
    by_member = {0: (0, 1), 1: (3, 4), 2: (5, 6), 3: (7, 8)}
    for line in lineage_of(run):
        assert line["fitness"] == pytest.approx(returns[list(by_member[line["member"]])].mean())
    seen = saved_records(run, 9 * STEPS, "observation.vector").reshape(9, STEPS + 1, 3)
    starts = [seen[episode, 0].tolist() for episode in range(9)]
    assert starts[0] == starts[3] == starts[5] == starts[7], "all members meet the same episodes"
    assert starts[1] != starts[0] and starts[2] not in (starts[0], starts[1])


def test_a_run_ends_when_its_steps_are_taken(tmp_path: Path) -> None:
    run = start(tmp_path / "run", *POPULATION, "training.total_timesteps=150")
    assert len(generations_of(run)) == 2


def test_played_actions_lead_to_the_stored_observations(whole_run: Path) -> None:
    actions = saved_records(whole_run, 5 * STEPS, "action").reshape(5, STEPS + 1, 1)
    rewards = saved_records(whole_run, 5 * STEPS, "reward").reshape(5, STEPS + 1)
    assert (actions[:, -1] == 0).all() and (np.abs(actions) <= 1).all()
    seen = saved_records(whole_run, 5 * STEPS, "observation.vector").reshape(5, STEPS + 1, 3)
    environment = make_environment(load_run(str(whole_run)).env, 0)
    environment.close()
    # The reward follows from observation and torque by Pendulum's own equations.
    angle, speed, torque = np.arctan2(seen[..., 1], seen[..., 0]), seen[..., 2], 2 * actions[..., 0]
    cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
    np.testing.assert_allclose(rewards[:, 1:], -cost[:, :-1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("env.id=CartPole-v1",), "CartPole-v1 has discrete actions"),
        (("population.evolution=off", "population.gradient=off"), "learns nothing"),
        (("population.size=1", "population.gradient=off"), "one member cannot evolve"),
        (("training.train_ratio=3",), "training.train_ratio is a setting of workflow=dreamer,"),
        (("buffer.capacity=100",), "buffer.capacity=100 is too small for an episode of 21 records"),
        (("population.elites=3",), "population has the keys"),
        (("population.elite_fraction=1",), "makes all 4 members elites"),
        (("population.size=100000000",), "population.size must be in [1, 10000], got 100000000."),
        (("population.tournament_size=10000000000",), "population.tournament_size must be in [1, 10000]"),
        (("population.weight_limit=0",), "population.weight_limit must be in (0, 1e+30]"),
        (("td3.critic_learning_rate=1e20",), "td3.critic_learning_rate must be in (0, 1], got"),
        (("td3.hidden_units=9999999999999999",), "td3.hidden_units must be in [1, 65536]"),
        (("training.batch_size=1000000000000000",), "training.batch_size must be at most 1000000"),
        (("training.gradient_accumulation_steps=1000000000",), "must be at most 1000, got 1000000000."),
    ],
)
def test_what_cannot_be_is_one_sentence(
    overrides: Sequence[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        start(tmp_path / "run", *POPULATION, *overrides)
    assert ending.value.code == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_dreamer_takes_no_settings_of_a_population(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        start(tmp_path / "run", "experiment=dreamer_catch", "population.size=3")
    assert "population.size is a setting of workflow=population," in capsys.readouterr().err


def test_a_population_goes_on_from_an_s3_server_on_an_empty_folder(
    s3: S3Server, whole_run: Path, empty_folder: Path
) -> None:
    halfway = ("training.generations=2", f"checkpoint.mirror={S3_MIRROR}")
    start(empty_folder / "erl", *POPULATION, "training.keep_checkpoints=9", *halfway)
    shutil.rmtree(empty_folder / "erl")
    more = ["run_dir=there", "training.generations=4", "checkpoint.mirror=null"]
    run_from_command_line(train, [f"resume={S3_MIRROR}/erl", *more])
    assert fingerprint(empty_folder / "there") == fingerprint(whole_run)


def test_a_generation_that_fails_half_done_is_not_saved(
    whole_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = TD3.learn
    broken = tmp_path / "broken"

    def fails_in_generation_3(self: TD3, members: Members, *arguments: Any) -> Any:
        losses = learn(self, members, *arguments)
        if members.updates == 9:
            # CUDA raises the same error in the middle of training.
            raise torch.OutOfMemoryError("no memory left")
        return losses

    with monkeypatch.context() as failing, pytest.raises(SystemExit) as ending:
        failing.setattr(TD3, "learn", fails_in_generation_3)
        start(broken, *POPULATION, "training.keep_checkpoints=9")
    assert ending.value.code == 6
    assert saved_steps(broken) == [5 * STEPS, 10 * STEPS]
    assert "generation 3 was discarded" in (broken / "train.log").read_text()
    resume(broken)
    assert fingerprint(broken) == fingerprint(whole_run)
