"""`model.init` begins a run with the networks of another one, and with nothing else of it."""

import re
from pathlib import Path

import pytest
import torch

from reverie.commands.command_line import run_from_command_line
from reverie.commands.train import train

from ..runs.helpers import CATCH, error_of, saved_loop, saved_model, start

BRIEF = (
    *CATCH,
    "training.total_timesteps=60",
    "training.learning_starts=60",
    "training.checkpoint_interval=0",
)
WEIGHTS = "checkpoints/step_000000300/model.safetensors"


def networks(run: Path, step: int) -> dict[str, torch.Tensor]:
    """Return parameters and buffers of world model and controller."""
    model = saved_model(run, step)
    parts = ("world_model", "controller")
    return {f"{part}/{key}": value for part in parts for key, value in model[part].items()}


@pytest.mark.parametrize("source", ["", WEIGHTS])
def test_a_run_begins_with_the_networks_of_another(catch_run: Path, tmp_path: Path, source: str) -> None:
    # One update with a rate that changes no float32, after the last step: what is saved is what was loaded.
    rates = [f"optimizer.{prefix}learning_rate=1e-30" for prefix in ("", "actor_", "critic_")]
    run = start(tmp_path / "run", *BRIEF, *rates, f"model.init={catch_run / source}", "seed=5")
    expected, found = networks(catch_run, 300), networks(run, 60)
    assert found.keys() == expected.keys()
    changing = ("slow_critic", "normalizer")
    trained = [name for name in expected if not any(part in name for part in changing)]
    assert len(trained) > 50
    assert [name for name in trained if not torch.equal(found[name], expected[name])] == []
    assert saved_loop(run, 60)["updates"] == 1


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.init=nowhere",), "model.init=nowhere does not exist. Name a safetensors file or"),
        (("model.init={run}/" + WEIGHTS, "model.units=8"), "does not fit the networks: .* instead of "),
        (("model.init={run}/config.yaml",), "config.yaml is not a file that Reverie wrote"),
    ],
)
def test_networks_that_do_not_fit_are_refused_and_leave_no_folder(
    catch_run: Path,
    empty_folder: Path,
    overrides: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [override.format(run=catch_run) for override in overrides]
    found = error_of(capsys, lambda: run_from_command_line(train, [*BRIEF, *given, "run_dir=new"]))
    assert re.search(message, found), found
    assert not (empty_folder / "new").exists()
