"""`pretrained:<name>`: bundled networks can be played, initialize runs, and have a card."""

import hashlib
import runpy
import sys
from pathlib import Path

import pytest
import torch

from reverie.checkpoints.pretrained import (
    CARD_FILE,
    WEIGHTS_FILE,
    pretrained_names,
    read_card,
    resolve_pretrained,
)
from reverie.checkpoints.run_folder import CONFIG_FILE, load_run
from reverie.commands.evaluate import EvaluateConfig, evaluate_run
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.saved import read_config
from reverie.config.schema import Device
from reverie.utils.durable_io import read_tensors
from reverie.utils.errors import UserError

from ..runs.helpers import start
from ..runs.warm import Server

NAMES = ("cartpole", "catch", "pong")
MAKE = Path(__file__).parents[2] / "scripts" / "make_pretrained.py"


def folder_of(name: str) -> Path:
    return Path(resolve_pretrained(f"pretrained:{name}"))


@pytest.mark.parametrize("name", NAMES)
def test_a_card_belongs_to_its_weights(name: str) -> None:
    card = read_card(folder_of(name))
    assert card["sha256"] == hashlib.sha256((folder_of(name) / WEIGHTS_FILE).read_bytes()).hexdigest()


def test_the_networks_of_the_package_are_few_megabytes() -> None:
    assert pretrained_names() == sorted(NAMES)
    files = [file for name in NAMES for file in folder_of(name).iterdir()]
    assert {file.name for file in files} == {CARD_FILE, CONFIG_FILE, WEIGHTS_FILE}
    assert sum(file.stat().st_size for file in files) < 12e6


@pytest.mark.parametrize(
    ("name", "episodes", "max_steps", "least"),
    [("cartpole", 4, 100, 95), ("catch", 20, None, 0.7), ("pong", 1, 300, 2)],
)
def test_the_agents_that_come_with_the_package_play_well(
    name: str, episodes: int, max_steps: int | None, least: float
) -> None:
    asked = EvaluateConfig(
        run=f"pretrained:{name}", episodes=episodes, max_steps=max_steps, device=Device.cpu
    )
    result, _ = evaluate_run(asked)
    card = read_card(folder_of(name))
    assert (result["step"], result["environment"]) == (card["step"], card["environment"])
    assert float(str(result["mean"])) >= least


def test_a_run_begins_with_the_networks_of_the_package(tmp_path: Path) -> None:
    brief = ("training.total_timesteps=32", "training.learning_starts=1000", "env.num_envs=2")
    small = ("device=cpu", "compile=none", "buffer.capacity=2000", "buffer.chunk_length=32", "logger=plain")
    run = start(tmp_path / "run", "experiment=dreamer_catch", *small, *brief, "model.init=pretrained:catch")
    [saved] = (tmp_path / "run" / "checkpoints").glob("step_*/model.safetensors")
    own, weights = read_tensors(saved), read_tensors(folder_of("catch") / WEIGHTS_FILE)
    assert run.is_dir() and all(torch.equal(own[key], value) for key, value in weights.items())


def test_resuming_the_networks_of_the_package_is_a_new_run_with_their_settings(
    tmp_path: Path, server: Server
) -> None:
    name = "catch"
    short = ("training.total_timesteps=36", "training.learning_starts=34", "env.num_envs=2", "seed=3")
    small = ("device=cpu", "compile=none", "buffer.capacity=2000", "buffer.compressed=true")
    ended = server.run("train", f"resume=pretrained:{name}", f"run_dir={tmp_path / 'run'}", *small, *short)
    assert ended.code == 0, ended.error
    assert f"new run with the networks and settings of pretrained:{name}" in ended.error
    config, theirs = load_run(str(tmp_path / "run")), load_run(str(folder_of(name)), device=Device.cpu)
    assert isinstance(config, DreamerTrainConfig) and isinstance(theirs, DreamerTrainConfig)
    assert (config.model.init, config.seed, config.resume) == (f"pretrained:{name}", 3, None)
    assert (config.optimizer, config.world_model) == (theirs.optimizer, theirs.world_model)
    refused = server.run("train", f"resume=pretrained:{name}", "model.deter=128")
    assert refused.code == 2 and "model.deter cannot change" in refused.error


def test_an_unknown_name_gets_a_list_of_the_known_names() -> None:
    known = "pretrained:cartpole, pretrained:catch, pretrained:pong"
    with pytest.raises(UserError, match=rf"Choose {known}\. Did you mean `pong`"):
        resolve_pretrained("pretrained:pang")


def test_networks_of_the_package_are_made_by_one_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run=pretrained:catch", f"out={tmp_path / 'again'}", "commit=0", "trained_on=none", "episodes=4")
    monkeypatch.setattr(sys, "argv", [MAKE.name, *words])
    runpy.run_path(str(MAKE), run_name="__main__")
    card, theirs = read_card(tmp_path / "again"), read_card(folder_of("catch"))
    same = ("environment", "step", "policy", "seed", "evaluation_seed", "sha256")
    assert list(card) == list(theirs) and [card[key] for key in same] == [theirs[key] for key in same]
    folders = (tmp_path / "again", folder_of("catch"))
    made, given = ((folder / WEIGHTS_FILE).read_bytes() for folder in folders)
    assert made == given
    # The bundled configuration lacks newer settings.
    made, given = (read_config(folder / CONFIG_FILE) for folder in folders)
    assert made == given
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(MAKE), run_name="__main__")
    assert "again already exists. Choose a new folder." in capsys.readouterr().err
