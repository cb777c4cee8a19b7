"""Control of a run from Python: stop it, iterate over its reports, load its best checkpoint, evaluate."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import reverie
from reverie.checkpoints.checkpoint import MANIFEST
from reverie.commands import evaluate
from reverie.envs import Catch

from ..runs.helpers import (
    CARTPOLE,
    CATCH,
    POPULATION,
    differing,
    identity,
    saved_loop,
    saved_model,
    saved_steps,
)

pytestmark = pytest.mark.usefixtures("empty_folder")
BRIEF = [
    *CARTPOLE,
    "training.total_timesteps=120",
    "training.log_interval=20",
    "training.checkpoint_interval=1000",
    "logger=plain",
]
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
EVALUATED = ("training.evaluation_interval=20", "training.evaluation_episodes=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that is not controlled."""
    return reverie.train(overrides=[*BRIEF, f"run_dir={tmp_path_factory.mktemp('runs') / 'whole'}"]).run_dir


def stop_at(step: int) -> Any:
    """Return a callback that raises `Stop` at the first line of this step or a later one."""

    def stop(at: int, values: Mapping[str, float]) -> bool:
        if at >= step:
            raise reverie.Stop
        # Return values are ignored.
        return False

    return stop


def test_stop_ends_the_run_with_a_checkpoint_and_the_resumed_run_is_the_whole_one(
    whole: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = reverie.train(overrides=BRIEF, callback=stop_at(60), run_dir="stopped")
    assert saved_steps(run.run_dir) == [60] and run.agent.step == 60
    ended = "ended at step 60: a callback raised reverie.Stop; continue with resume=stopped"
    assert ended in capfd.readouterr().err
    reverie.train(resume="stopped")
    assert identity(Path("stopped")) == identity(whole)


def test_the_iterator_yields_the_reports_of_a_callback_from_the_same_run(whole: Path) -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    handlers = [signal.getsignal(number) for number in STOPPING]
    reports = list(
        reverie.steps(overrides=BRIEF, callback=lambda *both: seen.append(both), run_dir="iterated")
    )
    assert [signal.getsignal(number) for number in STOPPING] == handlers
    assert reports == seen
    assert [{"step": step, **values} for step, values in reports] == reverie.Run("iterated").metrics()
    assert [each.step for each in reports if "train/updates" in each.values] == [20, 40, 60, 80, 100, 120]
    assert identity(Path("iterated")) == identity(whole)


class Counted(Catch):
    """Counts the environments that are open."""

    opened = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.opened += 1

    def close(self) -> None:
        super().close()
        Counted.opened -= 1


def test_leaving_the_loop_ends_the_run_and_closes_its_environments() -> None:
    handlers = [signal.getsignal(number) for number in STOPPING]
    arguments: dict[str, Any] = {"overrides": [*BRIEF, "env.action_repeat=1"], "env": Counted}
    before = Counted.opened
    last = 0
    for report in reverie.steps("dreamer_catch", run_dir="left", **arguments):
        assert Counted.opened == before + 1
        last = report.step
        if last >= 40:
            break
    assert Counted.opened == before
    assert saved_steps(Path("left")) == [last]
    assert [signal.getsignal(number) for number in STOPPING] == handlers
    with pytest.raises(ZeroDivisionError):
        for _ in reverie.steps("dreamer_catch", run_dir="raised", **arguments):
            raise ZeroDivisionError
    assert Counted.opened == before and len(saved_steps(Path("raised"))) == 1
    # The iterator is still referenced here.
    reports = reverie.steps("dreamer_catch", run_dir="closed", **arguments)
    next(reports)
    assert Counted.opened == before + 1
    reports.close()
    assert Counted.opened == before and list(reports) == []
    for name in ("left", "raised", "closed"):
        reverie.train(resume=name, env=Counted)
    assert identity(Path("left")) == identity(Path("raised")) == identity(Path("closed"))


KEPT = f"""
import reverie
reports = reverie.steps(overrides={BRIEF}, run_dir="kept")
print(next(reports).step)
"""


def test_an_iterator_that_the_program_keeps_is_closed_at_its_end() -> None:
    ended = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert saved_steps(Path("kept")) == [int(ended.stdout)]
    assert "the program left the loop over reverie.steps; continue with resume=kept" in ended.stderr


def test_mistakes_are_reported_before_the_first_step(empty_folder: Path) -> None:
    for wrong, message in ({"seed": "x"}, "seed must be"), ({"callback": print.__name__}, "callback must be"):
        with pytest.raises(reverie.UserError, match=message):
            reverie.steps(overrides=BRIEF, **wrong)  # pyright: ignore[reportArgumentType]
    # A run that is never iterated does not exist.
    reverie.steps(overrides=BRIEF, run_dir="none")
    assert not any(empty_folder.iterdir())


def test_a_second_run_waits_for_the_end_of_the_first() -> None:
    first = reverie.steps(overrides=BRIEF, run_dir="first")
    next(first)
    with pytest.raises(reverie.UserError, match="Another run of this process is active"):
        reverie.train(overrides=BRIEF, run_dir="second")
    first.close()
    assert not Path("second").exists()
    reverie.train(overrides=BRIEF, run_dir="second")


def test_ctrl_c_in_the_loop_saves_and_is_raised_by_the_iterator() -> None:
    seen = []
    with pytest.raises(KeyboardInterrupt, match=r'continue with reverie.train\(resume="interrupted"\)'):
        for report in reverie.steps(overrides=BRIEF, run_dir="interrupted"):
            seen.append(report.step)
            signal.raise_signal(signal.SIGINT)
    assert len(seen) == 1 and len(saved_steps(Path("interrupted"))) == 1


def test_ctrl_c_takes_precedence_over_stop() -> None:
    def both(step: int, values: Mapping[str, float]) -> None:
        signal.raise_signal(signal.SIGINT)
        raise reverie.Stop

    with pytest.raises(KeyboardInterrupt):
        reverie.train(overrides=BRIEF, callback=both, run_dir="both")
    assert len(saved_steps(Path("both"))) == 1


def test_an_error_after_stop_is_still_an_error() -> None:
    class Dying(Catch):
        def step(self, action: Any) -> Any:
            if Dying.steps == 30:
                raise ArithmeticError("it broke")
            Dying.steps += 1
            return super().step(action)

        steps = -2

    settings = [*BRIEF, "env.max_restarts=0", "env.action_repeat=1"]
    with pytest.raises(RuntimeError, match="exit code 5"):
        list(reverie.steps("dreamer_catch", settings, env=Dying, run_dir="dying"))


def test_the_body_of_the_loop_keeps_the_settings_of_torch() -> None:
    with torch.no_grad():
        for _ in reverie.steps(overrides=BRIEF, run_dir="torch"):
            assert not torch.is_grad_enabled()
            break
    assert torch.is_grad_enabled()


def test_a_population_stops_between_generations_and_continues_exactly() -> None:
    run = reverie.train(overrides=POPULATION, run_dir="population")
    reports = []
    for report in reverie.steps(overrides=POPULATION, run_dir="left"):
        reports.append(report)
        if report.values.get("population/generation") == 2:
            break
    assert reports[-1].step < run.metrics()[-1]["step"]
    reverie.train(resume="left", callback=stop_at(reports[-1].step + 1))
    assert saved_loop(Path("left"), saved_steps(Path("left"))[-1])["generation"] == 3
    reverie.train(resume="left")
    assert identity_of_population(Path("left")) == identity_of_population(run.run_dir)
    lines = [line for line in run.metrics() if "population/fitness_best_ever" in line]
    ever = {line["step"]: line["population/fitness_best_ever"] for line in lines}
    assert run.best.step == min(step for step in ever if ever[step] == max(ever.values()))


def identity_of_population(run_dir: Path) -> tuple[list[dict[str, float]], Any]:
    fitness = [line for line in reverie.Run(run_dir).metrics() if "population/fitness_best" in line]
    kept = [{tag: line[tag] for tag in line if tag.startswith("population/")} for line in fitness]
    return kept, saved_loop(run_dir, saved_steps(run_dir)[-1])


def test_a_target_ends_the_run_by_the_last_twenty_episodes(capfd: pytest.CaptureFixture[str]) -> None:
    settings = [*CATCH, "training.total_timesteps=3000", "training.train_ratio=0.1"]
    run = reverie.train(overrides=[*settings, "training.target_return=-0.9"], run_dir="target")
    returns = [line["episode/return"] for line in run.metrics() if "episode/return" in line]
    assert len(returns) >= 20 and np.mean(returns[-20:]) >= -0.9
    # Four environments end their episodes in the same step.
    assert all(np.mean(returns[end - 20 : end]) < -0.9 for end in range(20, len(returns) - 3))
    [step] = {saved_steps(run.run_dir)[-1], run.agent.step}
    assert step is not None and step < 3000
    reached = (
        f"ended at step {step:,}: the mean return of the last 20 episodes, {np.mean(returns[-20:]):.4g}, "
    )
    assert f"{reached}reached training.target_return=-0.9; continue" in capfd.readouterr().err
    # The last returns are part of the checkpoint, so the next finished episode ends the run again.
    again = reverie.train(resume="target")
    assert again.agent.step is not None and step < again.agent.step <= step + 32
    assert reverie.train(
        resume="target", total_timesteps=step + 60, overrides=["training.target_return=null"]
    )
    assert saved_steps(run.run_dir)[-1] == step + 60


def test_a_target_ends_the_run_by_an_evaluation() -> None:
    # CartPole returns at least 8 in each episode.
    run = reverie.train(overrides=[*BRIEF, *EVALUATED, "training.target_return=8"], run_dir="evaluated")
    assert saved_steps(run.run_dir) == [20]
    with pytest.raises(reverie.UserError, match=r"target_return=8 is compared with evaluations, because"):
        offline = ["training.offline=true", "buffer.prefill=nowhere"]
        reverie.train(overrides=[*BRIEF, *offline, "training.target_return=8"])
    with pytest.raises(reverie.UserError, match=r"training.target_return.*workflow=population"):
        reverie.train(overrides=[*POPULATION, "training.target_return=8"])


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that performs worse in its last evaluation than before."""
    folder = tmp_path_factory.mktemp("runs") / "evaluated"
    settings = [*BRIEF, *EVALUATED, "training.keep_checkpoints=1", f"run_dir={folder}"]
    run = reverie.train(overrides=settings)
    returns = evaluations(run)
    assert max(returns, key=lambda step: returns[step]) < 120
    return run.run_dir


def evaluations(run: reverie.Run) -> dict[int, float]:
    tag = "evaluation/return_mean"
    return {int(line["step"]): line[tag] for line in run.metrics() if tag in line}


def test_the_best_checkpoint_is_kept_and_loaded(evaluated: Path) -> None:
    run, returns = reverie.Run(evaluated), evaluations(reverie.Run(evaluated))
    best = max(returns, key=lambda step: returns[step])
    assert saved_steps(evaluated) == [best, 120]
    assert run.best is run.best and (run.best.step, run.agent.step) == (best, 120)
    assert reverie.load(evaluated, checkpoint="best").step == best
    assert differing(*(saved_model(evaluated, each) for each in (best, 120)))
    assert run.evaluate(episodes=2, checkpoint="best")["step"] == best


def test_without_a_best_checkpoint_the_error_names_the_settings(evaluated: Path, whole: Path) -> None:
    unmarked = r"has no checkpoint marked as the best\. Set training.evaluation_interval and"
    with pytest.raises(reverie.UserError, match=unmarked):
        reverie.load(whole, checkpoint="best")
    for wrong, message in (
        ({"source": evaluated, "checkpoint": "bset"}, "checkpoint=bset is not one of newest, best.* `best`"),
        (
            {"source": "pretrained:catch", "checkpoint": "best"},
            "checkpoint=best needs a run, but pretrained:",
        ),
    ):
        with pytest.raises(reverie.UserError, match=message):
            reverie.load(**wrong)  # pyright: ignore[reportArgumentType]
    run = reverie.train(overrides=[*BRIEF, *EVALUATED, "training.keep_best=false"], run_dir="unkept")
    assert saved_steps(run.run_dir) == [120]
    with pytest.raises(reverie.UserError, match=unmarked):
        _ = run.best
    # A damaged file of the best checkpoint is an error, not another agent.
    copy = Path(shutil.copytree(evaluated, "copy"))
    manifest = copy / "checkpoints" / f"step_{saved_steps(copy)[0]:09d}" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"best": true', '"best": false'))
    with pytest.raises(reverie.UserError, match=r"the best\. Damaged: .*checksum does not match"):
        reverie.load(copy, checkpoint="best")
    assert reverie.load(copy).step == 120


def test_evaluate_returns_what_the_command_prints(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["episodes=3", "seed=2", "policy=mode", "max_steps=12", "device=cpu"]
    monkeypatch.setattr(sys, "argv", ["reverie-evaluate", f"run={whole}", *words])
    evaluate.main()
    printed = json.loads(capsys.readouterr().out)
    run, results = reverie.Run(whole), []
    steps: Any = np.int64(12)

    def play() -> None:
        results.append(run.evaluate(3, seed=2, policy="mode", max_steps=steps, device="cpu"))

    thread = threading.Thread(target=play)
    play()
    thread.start()
    thread.join()
    assert results == [printed, printed] and len(printed["returns"]) == 3


def test_evaluate_refuses_mistakes_and_ends_on_ctrl_c(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = reverie.Run(whole)
    for wrong, message in (
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"policy": "sampel"}, "policy must be one of sample, mode, got `sampel`.* Did you mean `sample`"),
        ({"checkpoint": "last"}, "checkpoint must be one of newest, best, got `last`"),
    ):
        with pytest.raises(reverie.UserError, match=message):
            run.evaluate(**wrong)  # pyright: ignore[reportArgumentType]
    # The user presses Ctrl-C during the evaluation. Earlier steps only probe the environment.
    step, steps = CartPoleEnv.step, []

    def press(env: CartPoleEnv, action: Any) -> Any:
        steps.append(action)
        if len(steps) == 4:
            signal.raise_signal(signal.SIGINT)
        return step(env, action)

    monkeypatch.setattr(CartPoleEnv, "step", press)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run.evaluate()
    assert len(steps) == 4 and signal.getsignal(signal.SIGINT) is handler
