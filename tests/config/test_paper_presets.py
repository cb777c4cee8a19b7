"""Each value of the paper presets is in the table of docs/differences.md."""

import re
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.resolve import typed
from reverie.config.schema import leaves

ROOT = Path(__file__).parents[2]
PRESETS = sorted(path.stem for path in (ROOT / "configs" / "experiment").glob("paper_*.yaml"))
OWN = {"name", "device", "precision", "compile", "buffer.memory_budget_gib", "memory.snapshot_interval"}
"""Settings of a run that are not the algorithm's."""


@cache
def table() -> dict[str, dict[str, str]]:
    """Return the cells of each preset by setting, from the only table with such columns."""
    lines = (ROOT / "docs" / "differences.md").read_text().splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    [start] = [index for index, row in enumerate(rows) if row[0] == "Setting"]
    presets, found = rows[start][2:], {}
    for setting, _, *cells in rows[start + 2 :]:
        if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", setting):
            break
        found[setting] = dict(zip(presets, cells, strict=True))
    return found


@cache
def settings_of(preset: str, device: str = "cpu") -> dict[str, Any]:
    [job] = compose_jobs([f"experiment={preset}"])
    # Composed for a device without requiring that this machine has it.
    job.device = device
    return dict(leaves(typed(job, DreamerTrainConfig, must_run_here=False)))


def is_written(value: Any, cell: str) -> bool:
    """Return whether a cell, e.g. "512, now 1024", begins with the value and then differs from it."""
    written, _, now = cell.partition(", now ")
    if isinstance(value, Enum):
        value = value.name
    if isinstance(value, bool) or not isinstance(value, int | float):
        return written == str(value).lower() and not now
    numbers = [float(text.replace(",", "")) for text in (written, now) if text]
    return numbers[0] == value and value not in numbers[1:]


def test_the_table_has_a_column_for_each_paper_preset() -> None:
    assert PRESETS == ["paper_atari100k", "paper_crafter", "paper_dmc_proprio", "paper_dmc_vision"]
    assert len(table()) > 50
    for row in table().values():
        assert sorted(row) == PRESETS


@pytest.mark.parametrize("preset", PRESETS)
def test_every_value_of_a_preset_is_the_one_in_the_table(preset: str) -> None:
    settings = settings_of(preset)
    for setting, row in table().items():
        assert row[preset] == "-" or is_written(settings[setting], row[preset]), (setting, row[preset])


@pytest.mark.parametrize("preset", PRESETS)
def test_whatever_a_preset_changes_is_in_the_table(preset: str) -> None:
    defaults = dict(leaves(DreamerTrainConfig()))
    settings = settings_of(preset)
    changed = {key for key, value in settings.items() if value != defaults[key]}
    listed = {setting for setting, row in table().items() if row[preset] != "-"}
    assert changed - OWN <= listed
    assert {"training.train_ratio", "model.deter", "env.action_repeat"} <= listed


@pytest.mark.parametrize("preset", PRESETS)
def test_a_paper_preset_is_the_same_on_every_device(preset: str) -> None:
    on_cpu, on_cuda = settings_of(preset, "cpu"), settings_of(preset, "cuda")
    assert {key for key, value in on_cpu.items() if value != on_cuda[key]} <= OWN


def test_a_wrong_cell_is_found() -> None:
    assert is_written(512.0, "512, now 1024") and is_written(5_000_000, "5,000,000")
    assert is_written(False, "false") and is_written("pong", "pong")
    for value, cell in ((512.0, "256"), (512.0, "512, now 512"), (2, "1, now 2"), (True, "false")):
        assert not is_written(value, cell)
