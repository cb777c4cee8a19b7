"""The programs in examples/ run as they would for a reader, and each notebook matches its .py file."""

import json
import re
from pathlib import Path

import jupytext
import numpy as np
import pytest
from reverie_export import export_onnx
from safetensors.torch import load_file

import reverie
from reverie.episodes import find_action, find_episodes
from reverie.utils.timestep import ActionSpec

from .runs.helpers import update_counts
from .runs.warm import Server

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
WORKFLOW = EXAMPLES / "random_shooting.py"
TENSORS = EXAMPLES / "catch_tensors.py"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
SHOWN = {
    "play_pretrained.py 20": r"Agent for atari/pong, .*: score [+-]\d+ at step 20",
    "train_catch.py 40": r"Agent for catch, trained for 40 steps>, 4 episodes, saved in experiments/",
    "seeker.py 60": r"ready to train\n(?s:.*)trained for 60 steps> moves its levers \[[012] [012]\]",
    "catch_tensors.py 60 2": r"CatchTensors-v0, trained for 60 steps>, mean return [+-]\d\.\d{3} in 1,000 ",
    "dream_ahead.py 5": r"after 0, 3, \.\.\. 15 steps; mean error 0\.\d\d of 255",
    "onnx_runner.py agent.onnx CartPole-v1 2": r"^episode 1: return \d+\nepisode 2: return \d+\n$",
    "replay_buffer.py 10": r"0\.8 MB(?s:.*)episode 10: return \d+, \d+ records",
    "find_a_leak.py": r"leak after \d+ steps",
    "convert_dreamerv3_torch.py train_eps mine": r"wrote 2 episodes to mine, actions: one of 3",
}
SMALL = (
    "model=debug",
    "controller.horizon=5",
    "training.batch_size=2",
    "training.sequence_length=6",
    "training.train_ratio=3",
)
CHOICES = np.array([[0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]], np.float32)
NUMBERS = np.array([[0, 0], [0.5, -1], [0.25, 1], [-0.5, 0]], np.float32, order="F")


def shown_by(server: Server, arguments: list[str], folder: Path) -> str:
    ended = server.run("script", *arguments, folder=folder, environment={"MPLBACKEND": "Agg"})
    assert ended.code == 0, ended.error
    return ended.out


def save_episodes(folder: Path, led: np.ndarray = CHOICES) -> None:
    """Write two episodes as dreamerv3-torch's `add_to_cache` and `save_episodes` do. One is truncated."""
    folder.mkdir()
    position = np.arange(4)
    arrays = {
        "vector": position[:, None].astype(np.float32) + 10,
        "image": np.full((4, 2, 2, 3), position[:, None, None, None], np.uint8),
        "is_first": position == 0,
        "reward": np.array([0, 0.5, 0, 1]),
        "discount": np.ones(4, np.float32),
        "action": led,
        "logprob": np.zeros(4, np.float32),
        "log_achievement": np.zeros(4, np.float32),
    }
    for name, is_terminal in (("a", position == 3), ("b", position > 3)):
        np.savez_compressed(folder / f"20240101T000000-{name}-4.npz", is_terminal=is_terminal, **arrays)


def test_each_example_is_short_and_listed() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    scripts = sorted(EXAMPLES.glob("*.py"))
    tested = [*(line.split()[0] for line in SHOWN), WORKFLOW.name]
    assert sorted(tested) == [script.name for script in scripts]
    for path in (*scripts, *NOTEBOOKS):
        assert f"../{path.relative_to(ROOT)}" in page
    most = {script: 60 for script in scripts} | {WORKFLOW: 150, TENSORS: 105}
    assert all(len(script.read_text().splitlines()) < lines for script, lines in most.items())


@pytest.mark.parametrize("line", SHOWN)
def test_an_example_runs(line: str, tmp_path: Path, server: Server) -> None:
    script, *arguments = line.split()
    save_episodes(tmp_path / "train_eps")
    if "agent.onnx" in arguments:
        export_onnx(reverie.load("pretrained:cartpole", device="cpu"), tmp_path / "agent.onnx")
    assert re.search(SHOWN[line], shown_by(server, [str(EXAMPLES / script), *arguments], tmp_path))


def test_a_workflow_outside_src_trains_resumes_exactly_and_passes_a_certificate(
    tmp_path: Path, server: Server
) -> None:
    command, steps, starts = str(WORKFLOW), "training.total_timesteps", "training.learning_starts=60"
    new = ["experiment=dreamer_catch", "device=cpu", "threads=1", *SMALL]
    shown_by(server, [command, *new, starts, f"{steps}=160", "run_dir=whole"], tmp_path)
    shown_by(server, [command, *new, starts, f"{steps}=120", "run_dir=resumed"], tmp_path)
    shown_by(server, [command, "resume=resumed", f"{steps}=160"], tmp_path)
    assert update_counts(tmp_path / "whole", 160)["world_model"] > 20
    whole, resumed = (
        load_file(next((tmp_path / run).glob("checkpoints/step_*160/model.safetensors")))
        for run in ("whole", "resumed")
    )
    # The images at the end of the first part used this generator.
    assert not whole.pop("noise/report").equal(resumed.pop("noise/report"))
    assert whole.keys() == resumed.keys() and all(whole[name].equal(resumed[name]) for name in whole)
    assert "PASSED" in shown_by(server, [command, "certify", *new, "certify.steps=500"], tmp_path)


@pytest.mark.parametrize(
    ("form", "led", "action"),
    [("own", CHOICES, ActionSpec(3, True)), ("dreamerv3", NUMBERS, ActionSpec(2, False))],
)
def test_episodes_of_dreamerv3_torch_are_converted(
    tmp_path: Path, form: str, led: np.ndarray, action: ActionSpec, server: Server
) -> None:
    save_episodes(tmp_path / "train_eps", led)
    shown_by(server, [str(EXAMPLES / "convert_dreamerv3_torch.py"), "train_eps", "mine", form], tmp_path)
    found = find_episodes(tmp_path / "mine")
    assert found.format.name == form and find_action(found) == action
    episodes = list(found.read(action))
    assert [each.is_terminal for each in episodes] == [True, False]
    for each in episodes:
        assert each.observation.keys() == {"vector", "image"}
        assert each.observation["vector"].tolist() == [[10], [11], [12], [13]]
        assert each.observation["image"][:, 1, 1, 2].tolist() == [0, 1, 2, 3]
        assert each.action.tolist() == [*led[1:].tolist(), [0] * action.size]
        assert each.reward.tolist() == [0, 0.5, 0, 1]


def test_the_example_with_an_own_environment_is_that_of_its_page() -> None:
    page = (ROOT / "docs" / "your_environment.md").read_text()
    module, _ = re.findall(r"^```python\n(import gymnasium.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert module in (EXAMPLES / "seeker.py").read_text()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_cells_of_its_pair_and_their_outputs(notebook: Path) -> None:
    pair, cells = notebook.with_suffix(".py"), jupytext.read(notebook).cells
    assert [(cell.cell_type, cell.source) for cell in cells] == [
        (cell.cell_type, cell.source) for cell in jupytext.read(pair).cells
    ], f"make it again: jupytext --update --to ipynb {pair.relative_to(ROOT)}"
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]  # run once, in order
    assert all(cell.outputs for cell in code if "print(" in cell.source or "plt.show()" in cell.source)
    outputs = json.dumps([cell.outputs for cell in code])
    assert "image/png" in outputs or notebook.stem == "find_a_leak"
    assert not re.search(r'"error"|/home/|/tmp/', outputs)


def test_the_notebooks_run(tmp_path: Path, server: Server) -> None:
    pairs = [str(path.with_suffix(".py")) for path in NOTEBOOKS]
    assert len(pairs) == 3 == len(list((EXAMPLES / "notebooks").glob("*.py")))
    found = "".join(shown_by(server, [pair], tmp_path) for pair in pairs)
    assert re.search(
        r"^leak$(?s:.*)^agent\.state: [\d.]+ MB, \d+ steps deep\nflat 0 holders of graphs$", found, re.M
    )
    assert re.search(r"trained for 4,200 steps>: mean return \+1\.00 of 1", found)
    assert re.search(r"^game:  \{3: 1\.0\}\ndream: \{3: 0\.\d+", found, re.M)
    assert all((tmp_path / name).stat().st_size for name in ("dream.png", "errors.png", "memory/watch.html"))
