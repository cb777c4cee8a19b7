"""`reverie-export` writes a folder that `reverie.load` plays and the hub displays, or no files."""

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from omegaconf import OmegaConf

import reverie
from reverie.checkpoints.pretrained import WEIGHTS_FILE, resolve_pretrained
from reverie.checkpoints.weights import networks_of
from reverie.commands import entry
from reverie.commands import export as module
from reverie.commands.export import PAGE_FILE, VIDEO_FILE, main
from reverie.utils.durable_io import read_tensors
from reverie.utils.timestep import TimeStep
from reverie.workflows.world_models.dreamer import DreamerEvalPolicy

from ..runs.helpers import error_of

Capture = pytest.CaptureFixture[str]


def export(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["reverie-export", *arguments])
    main()


def test_a_run_becomes_networks_that_play_as_it_does_and_a_card_that_the_hub_reads(
    catch_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    out = tmp_path / "exported"
    export(monkeypatch, f"run={catch_run}", f"out={out}", "episodes=3", "video=true")
    files = {"README.md", "card.json", "config.yaml", VIDEO_FILE, WEIGHTS_FILE}
    assert {file.name for file in out.iterdir()} == files and (out / VIDEO_FILE).stat().st_size > 500
    assert str(tmp_path) not in (out / "config.yaml").read_text()
    card, page = json.loads((out / "card.json").read_text()), ModelCard.load(out / PAGE_FILE)
    assert f"mean {card['mean']:.2f}" in capsys.readouterr().out and card["step"] == 300
    [result] = vars(page.data)["eval_results"]
    assert (result.dataset_name, result.metric_type) == ("catch", "mean_reward")
    assert result.metric_value == f"{card['mean']:.2f} +/- {card['standard_error']:.2f}"
    agents = [reverie.load(folder, device="cpu") for folder in (out, catch_run)]
    env = agents[0].make_env()
    observation, _ = env.reset(seed=0)
    assert agents[0].act(observation) == agents[1].act(observation)
    assert agents[0].step == agents[1].step == 300


def test_what_was_exported_can_be_exported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(monkeypatch, "run=pretrained:cartpole", f"out={tmp_path / 'a'}", "episodes=1", "max_steps=5")
    ours, theirs = (
        read_tensors(folder / WEIGHTS_FILE)
        for folder in (tmp_path / "a", Path(resolve_pretrained("pretrained:cartpole")))
    )
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert "episodes cut after 5 steps" in (tmp_path / "a" / PAGE_FILE).read_text()


def test_the_score_is_that_of_the_weights_if_the_run_saves_more_meanwhile(
    cartpole_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, later = tmp_path / "run", tmp_path / "later"
    shutil.copytree(cartpole_run, run)
    (run / "checkpoints" / "step_000000300").rename(later)

    def networks_and_a_checkpoint(agent: Any) -> Any:
        if later.exists():
            later.rename(run / "checkpoints" / "step_000000300")
        return networks_of(agent)

    monkeypatch.setattr(module, "networks_of", networks_and_a_checkpoint)
    export(monkeypatch, f"run={run}", f"out={tmp_path / 'mine'}", "episodes=1", "max_steps=5")
    assert json.loads((tmp_path / "mine" / "card.json").read_text())["step"] == 150


def test_without_its_package_a_format_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "reverie_export.command", None)
    arguments = ["format=onnx", "run=pretrained:catch", f"out={tmp_path / 'agent.onnx'}"]
    monkeypatch.setattr(sys, "argv", ["reverie-export", *arguments])
    with pytest.raises(SystemExit) as ended:
        entry.export()
    error = capsys.readouterr().err
    assert (ended.value.code, error.count("\n"), [*tmp_path.iterdir()]) == (2, 1, [])
    assert "pip install -c constraints.txt -e packages/heapwatch -e packages/reverie-export" in error


def test_ctrl_c_writes_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    act = DreamerEvalPolicy.act

    def interrupted(policy: DreamerEvalPolicy, step: TimeStep) -> Any:
        signal.raise_signal(signal.SIGINT)
        return act(policy, step)

    monkeypatch.setattr(DreamerEvalPolicy, "act", interrupted)
    with pytest.raises(SystemExit, match="130"):
        export(monkeypatch, "run=pretrained:cartpole", f"out={tmp_path / 'mine'}")
    assert capsys.readouterr().err == "interrupted; no files were written\n"
    assert not list(tmp_path.iterdir())


def test_what_is_exported_names_no_address_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(resolve_pretrained("pretrained:cartpole"), tmp_path / "own")
    with (tmp_path / "own" / "config.yaml").open("a") as file:
        file.write("collect:\n  address: 10.0.0.7:6379\n")
    export(monkeypatch, f"run={tmp_path / 'own'}", f"out={tmp_path / 'mine'}", "episodes=1", "max_steps=5")
    assert "10.0.0.7" not in (tmp_path / "mine" / "config.yaml").read_text()


def test_what_was_trained_offline_plays_without_its_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(resolve_pretrained("pretrained:cartpole"), tmp_path / "own")
    config = OmegaConf.load(tmp_path / "own" / "config.yaml")
    config.training.offline = True
    OmegaConf.save(config, tmp_path / "own" / "config.yaml")
    export(monkeypatch, f"run={tmp_path / 'own'}", f"out={tmp_path / 'mine'}", "episodes=1", "max_steps=5")
    assert reverie.load(tmp_path / "mine").step is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run=pretrained:catch"], "out is missing. Write out=VALUE. New folder for the files."),
        (["run=pretrained:catch", "out=."], "out=. already exists. Choose a new folder."),
        (["out=new"], "run is missing. Write run=VALUE. Run folder"),
        (["run=pretrained:catch", "out=/proc/new", "episodes=1"], "out=/proc/new cannot be written: "),
        # An unwritable target is rejected before the run is played.
        (["run=nowhere", f"out={'o' * 300}"], "cannot be written: File name too long."),
        (["run=nowhere", f"out={__file__}/new"], "cannot be written: Not a directory."),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(
    arguments: list[str], message: str, empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert message in error_of(capsys, lambda: export(monkeypatch, *arguments))
    assert not list(empty_folder.iterdir())
