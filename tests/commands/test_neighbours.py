"""A command writes only the requested files, and leaves all other files and folders unchanged."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reverie.checkpoints.checkpoint import list_checkpoints
from reverie.checkpoints.mirror import restore
from reverie.commands import episodes, export, plot
from reverie.utils.durable_io import replace_file
from reverie.utils.video import save_video

from ..runs.helpers import files_in, resume

Write = Callable[[Path, str], object]


def export_of(run: Path, out: str) -> None:
    sys.argv = ["reverie-export", f"run={run}", f"out={out}", "episodes=1"]
    export.main()


WRITERS: dict[str, Write] = {
    "reverie-export": export_of,
    "reverie-episodes": lambda run, out: episodes.main(["export", f"run={run}", f"to={out}"]),
    "resume=URL": lambda run, out: restore(f"file://{run}", out),
    "reverie-plot": lambda run, out: plot.main([str(run), f"out={out}"]),
    "video": lambda run, out: save_video(Path(out), [np.zeros((16, 16, 3), np.uint8)], 5),
    "a file of a run": lambda run, out: replace_file(Path(out), [b"new"]),
}
NAMES = {"reverie-plot": "out.html", "video": "out.mp4"}
PATTERNS = ("{}.unfinished", ".{}.unfinished", ".{}.tmp", "{}.tmp", ".{}.part", "{}.part")


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("is_folder", [True, False])
def test_what_has_a_similar_name_is_left_as_it_was(
    writer: str,
    pattern: str,
    is_folder: bool,
    catch_run: Path,
    empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    name = NAMES.get(writer, "out")
    mine = empty_folder / pattern.format(name)
    if is_folder:
        mine.mkdir()
        mine /= "thesis.tex"
    mine.write_text("mine")
    WRITERS[writer](catch_run, name)
    assert mine.read_text() == "mine"
    assert {path.name for path in empty_folder.iterdir()} == {name, pattern.format(name)}


def test_a_checkpoint_deletes_nothing_but_what_runs_write(catch_run: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(catch_run, run_dir)
    mine = [
        "my_step_copy.unfinished/model.safetensors",
        "replaced_thesis.unfinished",
        "replay/embedding.safetensors",
    ]
    for name in mine:
        (run_dir / "checkpoints" / name).parent.mkdir(exist_ok=True)
        (run_dir / "checkpoints" / name).write_text("mine")
    half = run_dir / "checkpoints" / "step_000000310.unfinished"
    # This folder is from a killed process.
    half.mkdir()
    resume(run_dir, "training.total_timesteps=340", "training.keep_checkpoints=1")
    assert [each.step for each in list_checkpoints(run_dir)] == [340] and not half.exists()
    assert all(files_in(run_dir / "checkpoints")[name] == b"mine" for name in mine)
