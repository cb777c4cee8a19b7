"""The fixed lines of docs/leak_patterns.md end each leak.

The page's messages about the faulty lines are tested in test_patterns.py and test_reports.py.
"""

from functools import partial
from pathlib import Path

import pytest

from .fresh import in_a_fresh_process
from .leak_page import PAGE, SECTIONS, Section
from .leaky_programs import LEAKS
from .test_reports import REPORTS
from .watching import findings_of


def fixed(section: Section) -> str:
    """Return the program with the fixed lines of the page. A line of three dots separates places."""
    text = section.source
    for part in section.lines.split(" ...\n"):
        lines = part.splitlines(keepends=True)
        faulty = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(faulty) == 1, faulty
        text = text.replace(faulty, "".join(line[1:] for line in lines if line[0] in " +"))
    return text


def test_every_pattern_with_lines_has_a_program() -> None:
    assert len(SECTIONS) == PAGE.count("```diff") == len(set(SECTIONS)) >= 17
    assert SECTIONS.keys() <= LEAKS.keys() | REPORTS.keys()


@pytest.mark.parametrize("name", SECTIONS)
def test_the_fixed_lines_of_the_page_end_the_leak(name: str, tmp_path: Path) -> None:
    module = name if name not in LEAKS else "program"
    (tmp_path / f"{module}.py").write_text(fixed(SECTIONS[name]))
    found = in_a_fresh_process(partial(findings_of, tmp_path, module, "step"))
    assert found.verdict == "flat", found.messages
