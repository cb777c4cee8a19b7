"""Each block of "On a robot" runs."""

import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_python_of_the_page_runs(
    cartpole_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "robot.md").read_text(), re.M | re.S)
    assert len(blocks) == 4
    shutil.copy(cartpole_file, tmp_path / "agent.onnx")
    shutil.copy(ROOT / "examples" / "onnx_runner.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    space: dict[str, object] = {}
    for block in blocks:
        exec(block, space)
    sys.modules.pop("onnx_runner")
    assert re.search(r"CartPole-v1 \{'latent_noise'(?s:.*)\d+ of 50 steps were late", capsys.readouterr().out)
