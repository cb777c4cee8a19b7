"""The page "Your environment in 40 lines", executed block by block as its reader would."""

import re
import shlex
import sys
from pathlib import Path

import gymnasium
import pytest
import yaml

import reverie
from reverie.commands import evaluate
from reverie.commands.command_line import run_from_command_line
from reverie.commands.train import train

PAGE = (Path(__file__).parents[2] / "docs" / "your_environment.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command of the package in this process."""
    name, *arguments = shlex.split(line)
    if name == "reverie-train":
        return run_from_command_line(train, arguments)
    assert name == "reverie-evaluate"
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    evaluate.main()


def test_the_blocks_of_the_page_run_one_after_the_other(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, module), *others = BLOCKS
    code = [line for line in module.splitlines() if line and not line.startswith(("import ", "from "))]
    assert len(code) <= 40
    Path("seeker.py").write_text(module)
    space: dict[str, object] = {}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, ""])
        for language, text in others:
            if language == "sh":
                run_line(text.replace("\\\n", " "), monkeypatch)
            elif text.startswith("import gymnasium"):
                Path("pictures.py").write_text(text)
            else:
                exec(text, space)
    first = yaml.safe_load(Path("first/config.yaml").read_text())["env"]
    run = space["run"]
    assert isinstance(run, reverie.Run)
    assert first == yaml.safe_load((run.run_dir / "config.yaml").read_text())["env"]
    assert first["kwargs"] == {"size": 8}
    agent = space["agent"]
    assert isinstance(agent, reverie.Agent)
    env = agent.make_env()
    assert isinstance(env, gymnasium.wrappers.FilterObservation) and env.get_wrapper_attr("size") == 8
    assert Path("play.mp4").stat().st_size > 0
    del sys.modules["seeker"], sys.modules["pictures"], gymnasium.registry["Seeker-v0"]
