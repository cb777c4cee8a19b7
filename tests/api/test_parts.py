"""The examples of docs/components.md are trained, planned and resumed, and mistakes are reported."""

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import reverie
from reverie.commands.evaluate import main as evaluate
from reverie.commands.runs import checked_run
from reverie.config.schema import Compile
from reverie.orchestration.dreamer.dry_run import workflow_config
from reverie.testing.fingerprint import fingerprint
from reverie.utils.components import PARTS, check_part, make_part
from reverie.utils.errors import UserError
from reverie.workflows.world_models import CompiledDreamer, DreamerWorkflow
from tests.runs.helpers import (
    CATCH,
    bytes_of,
    error_of,
    intervals_of,
    resume,
    saved_loop,
    saved_model,
    start,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "components.md").read_text()
ENCODER = "model.encoder=patch_encoder:PatchEncoder"
SAMPLER = "buffer.sampler=curious_replay:CuriousReplay"
OBJECTIVE = "world_model.objective=next_tokens:NextTokens"
SHORT = (*CATCH, "training.total_timesteps=120", "training.warmup_steps=0", "training.checkpoint_interval=80")
OTHERS = """
import torch
from torch import nn
from reverie.models.decoder import Decoder
from reverie.models.heads import TwoHotHead

class Head(TwoHotHead):
    pass

class Brighter(Decoder):
    def to_raw(self, predictions):
        return super().to_raw({key: value + 0.1 for key, value in predictions.items()})

class WithoutEntropy(nn.Module):
    def forward(self, log_prob, entropy, advantage, entropy_scale):
        return -log_prob * advantage

class Bare(nn.Module):
    pass

class NotAModule:
    def forward(self, observation):
        return observation

class NoSize(nn.Module):
    def __init__(self, observation, config):
        super().__init__()

    def forward(self, observation):
        return observation

class Broken(NoSize):
    def __init__(self, observation, config):
        raise KeyError("image")

class NoState:
    def __init__(self, num_rows):
        pass

    def added(self, rows):
        pass

    learned = draw = load_state_dict = added

    def state_dict(self):
        pass

class Outside(NoState):
    def draw(self, rows, count, generator):
        return [len(rows)] * count

    def state_dict(self):
        return {}

class FromValues(NoSize):
    size = 4

    def forward(self, observation):
        return torch.zeros(int(observation["image"].sum()), 1, 4)
"""
MISTAKES = {
    "model.encoder=defalt": "is not one of default, or module:Class. Did you mean `default`?",
    "model.encoder=my-module:X": "is not one of default, or module:Class.",
    "buffer.sampler=no_module:X": "the module no_module is neither installed nor in the current folder",
    "model.encoder=other_parts:Bear": "other_parts has no class Bear. Did you mean `Bare`?",
    "model.encoder=other_parts:Bare": "Bare has no method forward of EncoderLike. docs/components.md lists",
    "model.decoder=other_parts:Bare": "Bare has no method forward of DecoderLike",
    "model.encoder=other_parts:NotAModule": "Define it as class NotAModule(nn.Module).",
    "model.encoder=other_parts:NoSize": "NoSize has no attribute size. Assign it in __init__",
    "model.encoder=other_parts:Broken": "cannot be created: KeyError: 'image' (other_parts.py, line",
    "model.encoder=other_parts:FromValues": "an update on torch's meta device, which plans memory, failed",
    "buffer.sampler=other_parts:NotAModule": "NotAModule has no method added of SamplerLike",
    "buffer.sampler=other_parts:NoState": "state_dict of NoState must return a dict of the state by name.",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with the modules of the examples."""
    for name in ("patch_encoder", "curious_replay", "next_tokens"):
        shutil.copy(ROOT / "examples" / "components" / f"{name}.py", tmp_path)
    (tmp_path / "other_parts.py").write_text(OTHERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("patch_encoder", "curious_replay", "next_tokens", "other_parts"):
        sys.modules.pop(name, None)
    return tmp_path


def test_each_example_is_on_the_page_and_has_thirty_lines() -> None:
    shown = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for setting in (ENCODER, SAMPLER, OBJECTIVE):
        module = setting.partition("=")[2].partition(":")[0]
        text = (ROOT / "examples" / "components" / f"{module}.py").read_text()
        assert text in shown and setting in text
        assert len([line for line in text.splitlines() if line.strip()]) <= 30


@pytest.mark.parametrize(("setting", "part"), [(ENCODER, "encoder"), (OBJECTIVE, "prediction")])
def test_a_network_of_the_page_trains_and_plays(setting: str, part: str, tmp_path: Path) -> None:
    run = start(tmp_path / "run", *SHORT, setting)
    assert np.isfinite([line["train/loss/total"] for line in intervals_of(run)]).all()
    before, after = (saved_model(run, step)["world_model"] for step in (80, 120))
    names = [name for name in after if name.startswith(f"{part}.")]
    assert names and not any(torch.equal(before[name], after[name]) for name in names)
    agent = reverie.load(run)
    assert type(getattr(agent.world_model, part)).__name__ == setting.rpartition(":")[2]
    env = agent.make_env()
    assert env.action_space.contains(agent.act(env.reset(seed=0)[0]))
    if part == "prediction":
        assert {"train/loss/NextTokens", "train/similarity"} <= intervals_of(run)[-1].keys()


def test_the_other_parts_train(tmp_path: Path) -> None:
    own = ("model.decoder=other_parts:Brighter", "controller.actor_loss=other_parts:WithoutEntropy")
    heads = [f"model.{name}_head=other_parts:Head" for name in ("reward", "value")]
    run = start(tmp_path / "run", *SHORT, *own, *heads)
    model = reverie.load(run).world_model
    assert [type(each).__name__ for each in (model.decoder, model.reward)] == ["Brighter", "Head"]
    plain = start(tmp_path / "plain", *SHORT, *heads)
    # The same networks, and the loss without the entropy.
    losses = [intervals_of(each)[-1]["train/loss/policy"] for each in (run, plain)]
    assert losses[0] != losses[1]


def resumed_at_80(whole: Path) -> Path:
    """Return a copy of a run that continued from its checkpoint at step 80."""
    broken = whole.with_name("broken")
    shutil.copytree(whole, broken)
    shutil.rmtree(broken / "checkpoints" / "step_000000120")
    return resume(broken, "trust=true")


def test_a_prioritized_sampler_prefers_new_windows_and_resumes_exactly(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", *SHORT, SAMPLER)
    assert fingerprint(resumed_at_80(whole)) == fingerprint(whole)
    sampler = saved_loop(whole, 120)["sampler"]
    assert sampler["visits"].sum() == 2 * saved_loop(whole, 120)["updates"]
    assert (sampler["priority"][sampler["visits"] == 0] == 1e5).all()
    trained = sampler["priority"][sampler["visits"] == 1]
    assert ((trained > 0.7e4) & (trained < 1e5)).all()
    uniform = start(tmp_path / "uniform", *SHORT)
    assert saved_loop(uniform, 120)["sampler"] == {}


def test_a_sampler_keeps_its_data_when_records_are_evicted(tmp_path: Path) -> None:
    small = ("buffer.capacity=72", "buffer.chunk_length=8", "training.learning_starts=32")
    whole = start(tmp_path / "whole", *SHORT, SAMPLER, *small)
    assert fingerprint(resumed_at_80(whole)) == fingerprint(whole)


def test_the_plan_has_the_networks_and_the_sampler() -> None:
    plain, own = (checked_run([*SHORT, *more])[1].plan for more in ((), (ENCODER, SAMPLER)))
    assert plain.num_parameters != own.num_parameters
    rows = bytes_of(own.resource("host RAM"), "sampler of the replay")
    # Two numbers of 8 bytes for each row.
    assert rows % 16 == 0 and rows >= 16 * 1000
    assert all(row.name != "sampler of the replay" for row in plain.resource("host RAM").rows)


@pytest.mark.parametrize(("setting", "message"), MISTAKES.items())
def test_a_mistake_is_one_clear_error(setting: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(capsys, lambda: start(Path("run"), *SHORT, setting))
    assert setting in error and message in error
    assert not Path("run").exists()


def test_a_sampler_of_ones_own_and_a_share_of_new_windows_exclude_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = error_of(capsys, lambda: start(Path("run"), *SHORT, SAMPLER, "buffer.newest_share=0.5"))
    assert "buffer.newest_share=0.5 needs buffer.sampler=uniform, got curious_replay:CuriousReplay" in error
    assert "Set buffer.newest_share=0." in error and not Path("run").exists()


def test_windows_that_do_not_exist_end_a_run_with_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as failure:
        start(Path("run"), *SHORT, "buffer.sampler=other_parts:Outside")
    last = capsys.readouterr().err.splitlines()[-1]
    assert failure.value.code == 2 and last.startswith("error: draw of buffer.sampler returned array([")
    assert re.search(r"but a batch needs \d+ integers in \[0, \d+\]\.$", last)


def test_a_copied_run_needs_trust_before_its_module_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = start(tmp_path / "own", *SHORT, ENCODER)
    shutil.copytree(own, copied := tmp_path / "copied")
    (tmp_path / "patch_encoder.py").write_text('from pathlib import Path\nPath("imported").touch()\n')
    sys.modules.pop("patch_encoder")
    refused = "copied was copied or downloaded, and loading it would import patch_encoder, because it sets "
    refused += ENCODER
    with pytest.raises(UserError, match=re.escape(refused)):
        reverie.load("copied")
    capsys.readouterr()
    for command in (
        lambda: evaluate_with("run=copied"),
        lambda: resume(Path("copied"), "training.total_timesteps=160"),
    ):
        assert refused in error_of(capsys, command)
    # The run's own setting has no effect.
    config = copied / "config.yaml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("#")]
    config.write_text("\n".join(lines).replace("trust: false", "trust: true") + "\n")
    with pytest.raises(UserError, match="Set trust=true if you trust this code"):
        reverie.load("copied")
    assert not Path("imported").exists()
    shutil.copy(ROOT / "examples" / "components" / "patch_encoder.py", tmp_path)
    assert reverie.load("copied", trust=True).step == 120
    reverie.train(resume="copied", total_timesteps=160, trust=True)
    # From now on, it is a run of this user.
    copied.rename("moved")
    assert reverie.load("moved").step == 160


def test_a_signature_covers_the_classes_and_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = start(tmp_path / "own", *SHORT, ENCODER)
    config = own / "config.yaml"
    text = "\n".join(line for line in config.read_text().splitlines() if not line.startswith("#")) + "\n"
    changed = text.replace("sampler: uniform", "sampler: foreign:Sampler")
    assert changed != text
    config.write_text(changed)
    with pytest.raises(
        UserError, match=re.escape("would import foreign, because it sets buffer.sampler=foreign")
    ):
        reverie.load(own)
    config.write_text(text)
    assert reverie.load(own).step == 120
    # A key exists only once, and only its user can read it.
    [key] = Path(os.environ["XDG_STATE_HOME"], "reverie").iterdir()
    assert key.name == "key" and key.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with pytest.raises(UserError, match="would import patch_encoder"):
        reverie.load(own)


def evaluate_with(*arguments: str) -> None:
    sys.argv = ["reverie-evaluate", *arguments]
    evaluate()


def test_classes_that_the_user_types_need_no_trust(tmp_path: Path) -> None:
    run = start(tmp_path / "run", *SHORT)
    own = "controller.actor_loss=other_parts:WithoutEntropy"
    resume(run, "training.total_timesteps=160", own)
    assert reverie.load(run).step == 160


def test_each_part_has_its_default_and_its_protocol_on_the_page() -> None:
    for setting, part in PARTS.items():
        for name in part.known:
            check_part(setting, name)
            assert make_part(setting, name) is None if part.known[name] is None else True
        assert f"`{setting}`" in PAGE and part.protocol.__name__ in PAGE


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler here")
def test_an_own_encoder_is_compiled_with_the_acting_step() -> None:
    config, preflight, _ = checked_run([*SHORT, ENCODER])
    assert config.compile is Compile.none
    actions = []
    for kind in (DreamerWorkflow, CompiledDreamer):
        torch.manual_seed(0)
        workflow = kind(preflight.env, workflow_config(config), torch.device("cpu"))  # type: ignore
        step = reverie.TimeStep.empty(preflight.env)
        step.is_first[:] = True
        actions.append(workflow.collect_step(step).latent.deter)
    torch.testing.assert_close(*actions)
