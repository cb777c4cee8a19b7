"""A report names the owner, the line and the fix of known leak patterns, and no fix for anything else."""

import re
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from .fresh import in_a_fresh_process
from .leaky_programs import DECOYS, LEAKS
from .watching import watched, write

STEPS = 66
# Each fix begins with one of these words.
FIXES = re.compile(r"\. (Store|Add|Call|Set|Limit|Delete|Remove|Create|Map|Keep|Cache|Do|Capture) ")


def messages_of(folder: Path) -> list[str]:
    """Run the program of a folder under a watch, and return the messages of its findings."""
    sys.path.insert(0, str(folder))
    program = import_module("program")
    watch = watched(program.step, STEPS, threshold_mb=0.3)
    return [message for each in watch.findings for message in (each.messages or each.sources)]


def run(source: str, folder: Path) -> list[str]:
    write(folder, source, "program.py")
    return in_a_fresh_process(partial(messages_of, folder))


@pytest.mark.parametrize("name", LEAKS)
def test_a_known_pattern_has_its_owner_its_line_and_its_fix(name: str, tmp_path: Path) -> None:
    leak = LEAKS[name]
    messages = run(leak.source, tmp_path)
    lines = (tmp_path / "program.py").read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if line.endswith("# grows")]
    assert any(
        message.startswith(leak.owner)
        and f"program.py:{number})" in message
        and leak.fix in message
        and FIXES.search(message)
        for message in messages
    ), messages


@pytest.mark.parametrize("name", DECOYS)
def test_a_similar_program_gets_no_fix(name: str, tmp_path: Path) -> None:
    messages = run(DECOYS[name], tmp_path)
    assert messages and not any(map(FIXES.search, messages)), messages
