"""An overlong file name raises one clear error in every argument."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import reverie
from reverie.commands import certify, episodes, evaluate, export, plan, plot
from reverie.commands.command_line import run_from_command_line
from reverie.commands.train import train
from reverie.utils.errors import UserError

from ..runs.helpers import CATCH, error_of, files_in

LONG = {"ascii": "x" * 300, "letters of two bytes": "é" * 150}


def typed(main: Callable[..., object], *arguments: str) -> Callable[[], object]:
    """Return a call of a command that reads `sys.argv`, as console scripts do."""

    def call() -> object:
        sys.argv = ["reverie", *arguments]
        return main()

    return call


def train_with(*arguments: str) -> Callable[[], object]:
    return lambda: run_from_command_line(train, [*CATCH, *arguments])


CASES: dict[str, Callable[[str, Path], Callable[[], object]]] = {
    "name=": lambda long, run: train_with(f"name={long}"),
    "run_dir=": lambda long, run: train_with(f"run_dir={long}"),
    "run_dir=a/": lambda long, run: train_with(f"run_dir=a/{long}"),
    "env.id=": lambda long, run: lambda: run_from_command_line(train, ["env=gymnasium", f"env.id={long}"]),
    "hydra.sweep.dir=": lambda long, run: train_with("-m", "seed=1,2", f"hydra.sweep.dir={long}"),
    "collect.address=": lambda long, run: train_with("collect.collectors=1", f"collect.address={long}:1"),
    "checkpoint.mirror=": lambda long, run: train_with(f"checkpoint.mirror=file:///{long}"),
    "resume=": lambda long, run: lambda: run_from_command_line(train, [f"resume={long}"]),
    "resume=URL": lambda long, run: lambda: run_from_command_line(train, [f"resume=file:///{long}"]),
    "model.init=": lambda long, run: train_with(f"model.init={long}"),
    "buffer.prefill=": lambda long, run: train_with(f"buffer.prefill={long}"),
    "--config-dir=": lambda long, run: train_with(f"--config-dir={long}"),
    "certify.out=": lambda long, run: (
        lambda: certify.main([*CATCH, "certify.steps=60", f"certify.out={long}"])
    ),
    "reverie-plan name=": lambda long, run: typed(plan.main, *CATCH, f"name={long}"),
    "reverie-evaluate run=": lambda long, run: typed(evaluate.main, f"run={long}"),
    "reverie-evaluate video=": lambda long, run: typed(evaluate.main, f"run={run}", f"video={long}.mp4"),
    "reverie-export run=": lambda long, run: typed(export.main, f"run={long}", "out=a"),
    "reverie-export out=": lambda long, run: typed(export.main, f"run={run}", f"out={long}"),
    "reverie-episodes path=": lambda long, run: lambda: episodes.main(["show", f"path={long}"]),
    "reverie-episodes to=": lambda long, run: lambda: episodes.main(["export", f"run={run}", f"to={long}"]),
    "reverie-plot": lambda long, run: lambda: plot.main([long]),
    "reverie-plot out=": lambda long, run: lambda: plot.main([str(run), f"out={long}.html"]),
}


@pytest.mark.parametrize("long", LONG.values(), ids=LONG)
@pytest.mark.parametrize("case", CASES)
def test_a_name_of_300_bytes_is_one_error(
    case: str,
    long: str,
    catch_run: Path,
    empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    message = error_of(capsys, CASES[case](long, catch_run))
    assert long in message or "(got 300)" in message
    assert files_in(empty_folder) == {}


def test_a_name_that_fits_a_file_system_is_used(empty_folder: Path) -> None:
    run_from_command_line(train, [*CATCH, "training.total_timesteps=8", f"name={'x' * 230}"])
    assert len(list(Path("experiments").iterdir())) == 1
    with pytest.raises(UserError, match="name must have at most 230 bytes"):
        reverie.train("dreamer_catch", name="x" * 231)
