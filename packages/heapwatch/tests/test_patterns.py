"""A report names the owner, the line and the fix of known leak patterns, and no fix for anything else."""

import re
from functools import partial
from pathlib import Path

import pytest

from .fresh import in_a_fresh_process
from .leaky_programs import LEAKS
from .similar_programs import DECOYS
from .watching import findings_of, write

# Each fix begins with one of these words.
WORDS = "Store|Add|Call|Set|Limit|Delete|Remove|Create|Map|Keep|Cache|Do|Capture|Warn|Use"
FIXES = re.compile(rf"\. ({WORDS}) ")


def run(source: str, folder: Path) -> list[str]:
    write(folder, source, "program.py")
    return in_a_fresh_process(partial(findings_of, folder, "program", "step")).messages


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
