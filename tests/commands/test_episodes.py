"""The command `reverie-episodes`."""

from pathlib import Path

import numpy as np
import pytest

from reverie.commands.episodes import main
from reverie.episodes import Format, find_episodes
from reverie.utils.timestep import ActionSpec

from ..episodes.made import plain
from ..runs.helpers import CATCH_STEPS, error_of, saved_records


def test_a_run_is_exported_shown_and_imported(
    catch_run: Path, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in Format:
        main(["export", f"run={catch_run}", f"to={form.value}", f"format={form.value}"])
        main(["import", f"path={form.value}", f"to=again/{form.value}"])
        capsys.readouterr()
        main(["show", f"path=again/{form.value}"])
        shown = capsys.readouterr().out
        assert "own" in shown and "uint8 (64, 64, 3)" in shown and "one of 3" in shown
    finished = int(saved_records(catch_run, 300, "is_last").sum())
    episodes = [list(find_episodes(Path("again") / form.value).read(ActionSpec(3, True))) for form in Format]
    assert all(plain(each) == plain(episodes[0]) for each in episodes)
    assert len(episodes[0]) == finished
    assert {len(each.reward) for each in episodes[0]} == {CATCH_STEPS + 1}
    rewards = saved_records(catch_run, 300, "reward")
    assert np.isin([each.reward[-1] for each in episodes[0]], rewards).all()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ["shaw", "path=e"],
            "shaw is not an action of reverie-episodes. Choose show, export, import. Did you mean `show`?",
        ),
        (["show"], "path is missing. Write path=VALUE. Folder or file of episodes, in any of the formats."),
        (
            ["show", "path=nowhere"],
            "path=nowhere does not exist. Choose a folder with episodes.",
        ),
        (["show", f"path={'e' * 300}"], f"path={'e' * 300} does not exist. Choose a folder with episodes."),
        (
            ["export", "run=nowhere", "to=e"],
            "run=nowhere is not a folder. Pass the folder of a run, e.g. run=experiments/<run>.",
        ),
        (
            ["export", "run=r", "to=e", "format=minary"],
            "format=minary: format must be one of own, dreamerv3, minari, got `minary`. Did you mean",
        ),
        (
            ["import", "path=e", "too=f"],
            "too=f is not a setting of reverie-episodes import (path=, to=, choices=)",
        ),
        (["import", "path=e", "--fast"], "--fast is not a setting of reverie-episodes import"),
        (["import", "path=e", "to=f", "choices=0"], "choices must be in [1, 100000], got 0."),
    ],
)
def test_a_mistake_is_one_sentence(
    capsys: pytest.CaptureFixture[str], empty_folder: Path, typed: list[str], message: str
) -> None:
    assert error_of(capsys, lambda: main(typed)).startswith(message)


@pytest.mark.parametrize("typed", [[], ["--help"], ["show", "--help"], ["export", "-h"]])
def test_help_is_shown(capsys: pytest.CaptureFixture[str], typed: list[str]) -> None:
    try:
        main(typed)
    except SystemExit as ended:
        assert not ended.code
    assert "reverie-episodes show|export|import" in capsys.readouterr().out
