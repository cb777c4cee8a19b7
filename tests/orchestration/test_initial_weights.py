"""`model.init` starts a run with the networks of another run, but with none of its other state."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

import reverie
from reverie.checkpoints.checkpoint import latest_checkpoint
from reverie.checkpoints.pretrained import WEIGHTS_FILE, resolve_pretrained
from reverie.commands.command_line import run_from_command_line
from reverie.commands.train import train
from reverie.utils.durable_io import read_tensors
from reverie.utils.errors import UserError
from reverie.utils.state_files import save_state

from ..runs.forged import write_manifest
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
    # One update after the last step with a rate too small to change a float32, so the saved weights are the
    # loaded ones.
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
        (("model.init=nowhere",), "model.init=nowhere does not exist. Pass a safetensors file or"),
        (("model.init={run}/" + WEIGHTS, "model.units=8"), "does not fit the networks: .* instead of "),
        (("model.init={run}/config.yaml",), "config.yaml is damaged, or was not written by Reverie"),
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


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_networks_with_values_that_are_not_finite_are_refused_wherever_they_are_read(
    value: float, catch_run: Path, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = empty_folder / "run"
    shutil.copytree(catch_run, run)
    newest = latest_checkpoint(run)
    model = newest.model(torch.device("cpu"))
    name, tensor = next(iter(model["world_model"].items()))
    tensor.view(-1)[-1] = value
    for file in ("model.json", "model.safetensors"):
        (newest.folder / file).unlink()
    records = save_state(newest.folder, "model", model)
    manifest = newest.manifest()
    files = {f"{newest.folder.name}/{file}": record for file, record in records.items()}
    manifest["files"] |= {file: {"bytes": r.nbytes, "sha256": r.sha256} for file, r in files.items()}
    write_manifest(newest, manifest)
    message = f"cannot be used: world_model/{name} has values that are not finite"
    with pytest.raises(UserError, match=re.escape(message)):
        reverie.load(run, device="cpu")
    for arguments in ([f"resume={run}"], [*BRIEF, f"model.init={run}", "run_dir=new"]):
        assert message in error_of(capsys, lambda: run_from_command_line(train, arguments))  # noqa: B023
    assert not (empty_folder / "new").exists()
    exported = empty_folder / "exported"
    shutil.copytree(resolve_pretrained("pretrained:catch"), exported)
    weights = read_tensors(exported / WEIGHTS_FILE)
    weights[f"world_model/{name}"].view(-1)[-1] = value
    (exported / WEIGHTS_FILE).write_bytes(save(weights))
    with pytest.raises(UserError, match=re.escape(message)):
        reverie.load(exported, device="cpu")
