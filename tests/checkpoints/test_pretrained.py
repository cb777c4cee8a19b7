"""`pretrained:<name>`: networks that come with the package are played and begun with, and have a card."""

import hashlib
from pathlib import Path

import pytest
import torch

from reverie.checkpoints.pretrained import WEIGHTS_FILE, pretrained_names, read_card, resolve_pretrained
from reverie.checkpoints.run_folder import load_run
from reverie.commands.evaluate import EvaluateConfig, evaluate_run
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.schema import Device
from reverie.utils.durable_io import read_tensors
from reverie.utils.errors import UserError

from ..runs.helpers import start
from ..runs.warm import Server


@pytest.mark.parametrize("name", pretrained_names())
def test_a_card_belongs_to_its_weights(name: str) -> None:
    folder = Path(resolve_pretrained(f"pretrained:{name}"))
    card = read_card(folder)
    assert card["sha256"] == hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 12e6


def test_the_agent_that_comes_with_the_package_wins_the_first_points_of_pong() -> None:
    asked = EvaluateConfig(run="pretrained:pong", episodes=1, max_steps=300, device=Device.cpu)
    result, _ = evaluate_run(asked)
    assert result["step"] == 356_679
    [score] = result["returns"]  # pyright: ignore[reportGeneralTypeIssues]
    assert score >= 2


def test_a_run_begins_with_the_networks_of_the_package(tmp_path: Path) -> None:
    brief = ("training.total_timesteps=32", "training.learning_starts=1000", "env.num_envs=2")
    small = ("device=cpu", "compile=none", "buffer.capacity=2000", "buffer.chunk_length=32", "logger=plain")
    run = start(
        tmp_path / "run", "experiment=dreamer_ataripong", *small, *brief, "model.init=pretrained:pong"
    )
    [saved] = (tmp_path / "run" / "checkpoints").glob("step_*/model.safetensors")
    own = read_tensors(saved)
    weights = read_tensors(Path(resolve_pretrained("pretrained:pong")) / WEIGHTS_FILE)
    assert run.is_dir() and all(torch.equal(own[name], value) for name, value in weights.items())


def test_resuming_the_networks_of_the_package_is_a_new_run_with_their_settings(
    tmp_path: Path, server: Server
) -> None:
    short = ("training.total_timesteps=36", "training.learning_starts=34", "env.num_envs=2", "seed=3")
    small = ("device=cpu", "compile=none", "buffer.capacity=2000", "buffer.compressed=true")
    ended = server.run("train", "resume=pretrained:pong", f"run_dir={tmp_path / 'run'}", *small, *short)
    assert ended.code == 0, ended.error
    assert "a new run with the networks and settings of pretrained:pong" in ended.error
    config = load_run(str(tmp_path / "run"))
    assert isinstance(config, DreamerTrainConfig)
    assert (config.model.init, config.seed, config.resume) == ("pretrained:pong", 3, None)
    assert config.optimizer.actor_learning_rate == 1e-4
    refused = server.run("train", "resume=pretrained:pong", "model.deter=256")
    assert refused.code == 2 and "model.deter cannot change" in refused.error


def test_a_name_that_is_none_is_answered_with_those_that_are() -> None:
    with pytest.raises(UserError, match=r"which has pretrained:pong\. Did you mean `pong`"):
        resolve_pretrained("pretrained:pang")
