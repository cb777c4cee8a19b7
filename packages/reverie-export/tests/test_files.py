"""The command writes one complete file, or a one-line error and no files."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from reverie_export import export_onnx, onnx_file

import reverie
from reverie import UserError
from reverie.commands import entry

from .agents import random_agent

COMMAND = Path(sys.executable).with_name("reverie-export")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True)


def test_the_command_writes_a_file_that_describes_itself(tmp_path: Path) -> None:
    done = run(tmp_path, "format=onnx", "run=pretrained:catch", "out=new/agent.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "new/agent.onnx: 280,133 parameters, 1.4 MB\n"
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["agent.onnx"]
    model = onnx.load(tmp_path / "new" / "agent.onnx")
    onnx.checker.check_model(model, full_check=True)
    about = json.loads({each.key: each.value for each in model.metadata_props}["reverie"])
    agent = reverie.load("pretrained:catch", device="cpu")
    assert about["model"] == {"units": 64, "deter": 256, "hidden": 64, "depth": 8} | about["model"]
    del about["model"]
    assert about == {
        "reverie": reverie.__version__,
        "preset": "dreamer_catch",
        "environment": "catch",
        "action_repeat": 1,
        "step": agent.step,
        "parameters": 280133,
        "observation": {"image": "uint8"},
        "action": "Discrete(3)",
        "state": {name: f"next_{name}" for name in ("deter", "stoch", "prev_action")},
        "noise": {"latent_noise": "exponential", "action_noise": "exponential"},
    }


def test_help_lists_the_settings_of_the_format(tmp_path: Path) -> None:
    done = run(tmp_path, "format=onnx", "--help")
    assert done.returncode == 0 and "checkpoint=newest" in done.stdout and "out=VALUE" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["format=onx", "out=a.onnx"], "format must be one of onnx, got `onx`. Did you mean `onnx`?"),
        (["format=onnx", "out=a.pt"], "out=a.pt must end with .onnx."),
        (["format=onnx"], "out is missing."),
        (["format=onnx", "out=there.onnx"], "out=there.onnx already exists. Choose a new file."),
        (
            ["format=onnx", "out=there.onnx/a.onnx"],
            "out=there.onnx/a.onnx cannot be written: Not a directory.",
        ),
        (["format=onnx", "out=a.onnx", "episodes=3"], "episodes=3 is not a setting of reverie-export"),
        (["format=onnx", "out=a.onnx", "run=nowhere"], "run=nowhere is not a folder."),
        (["format=onnx", "out=a.onnx", "run=empty"], "run=empty"),
        (["format=onnx", "out=a.onnx", "checkpoint=best"], "checkpoint=best needs a run"),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_no_file(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "there.onnx").touch()
    (tmp_path / "empty").mkdir()
    source = [] if any(each.startswith("run=") for each in arguments) else ["run=pretrained:catch"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["reverie-export", *arguments, *source])
    with pytest.raises(SystemExit) as ended:
        entry.export()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert shown.err.startswith("error: ") and message in shown.err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "there.onnx"]
    assert (tmp_path / "there.onnx").read_bytes() == b""


def test_an_agent_that_the_format_cannot_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    population, _ = random_agent("Pendulum-v1", experiment="erl_pendulum")
    with pytest.raises(UserError, match="from a population and has no world model"):
        export_onnx(population, tmp_path / "agent.onnx")
    agent, _ = random_agent("CartPole-v1", "model=debug")
    agent.world_model.to("meta")
    with pytest.raises(UserError, match=r"on meta\. Load it with device='cpu'"):
        export_onnx(agent, tmp_path / "agent.onnx")
    monkeypatch.setattr(onnx_file, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="An ONNX file has at most 2 GiB"):
        export_onnx(random_agent("CartPole-v1", "model=debug")[0], tmp_path / "agent.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_export_in_bfloat16_is_in_float32_and_leaves_the_agent_unchanged(tmp_path: Path) -> None:
    agent, workflow = random_agent("CartPole-v1", "model=debug")
    workflow.autocast_dtype = torch.bfloat16
    export_onnx(agent, tmp_path / "agent.onnx")
    assert workflow.autocast_dtype == torch.bfloat16
    types = {each.data_type for each in onnx.load(tmp_path / "agent.onnx").graph.initializer}
    assert onnx.TensorProto.BFLOAT16 not in types and onnx.TensorProto.FLOAT in types


def test_an_encoder_that_torch_cannot_export_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "branches.py").write_text(
        "from reverie.models import Encoder\n\n\n"
        "class Branching(Encoder):\n"
        "    def forward(self, observation):\n"
        "        tokens = super().forward(observation)\n"
        "        return tokens if tokens.device.type == 'meta' or tokens.sum() > 0 else -tokens\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    agent, _ = random_agent("CartPole-v1", "model.encoder=branches:Branching")
    with pytest.raises(UserError, match=r"^torch\.onnx cannot export this agent: .+"):
        export_onnx(agent, tmp_path / "agent.onnx")
    assert not (tmp_path / "agent.onnx").exists()
