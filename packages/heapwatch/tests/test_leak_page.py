"""The messages of docs/leak_patterns.md are real, and the fixed lines of the page end each leak."""

import re
import textwrap
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from .fresh import in_a_fresh_process
from .leaky_programs import LEAKS
from .watching import Findings, findings_of

PAGE = (Path(__file__).parents[3] / "docs" / "leak_patterns.md").read_text()
REPORTS = Path(__file__).parent / "reports"
# The message and the lines are followed by the name of the program.
SECTION = re.compile(r"```diff\n(.*?)```\n.*?```text\n(.*?)```\n\nProgram: `([^`]+)`", re.DOTALL)


class Section(NamedTuple):
    """The lines of a section, the message, and the text of the program."""

    lines: str
    message: str
    source: str


def source_of(name: str) -> str:
    if name in LEAKS:
        return textwrap.dedent(LEAKS[name].source).replace("  # grows", "")
    return (REPORTS / f"{name}.py").read_text().replace("  # grows", "")


SECTIONS = {name: Section(lines, message, source_of(name)) for lines, message, name in SECTION.findall(PAGE)}


def fixed(section: Section) -> str:
    """Return the program with the fixed lines of the page. A line of three dots separates places."""
    text = section.source
    for part in section.lines.split(" ...\n"):
        lines = part.splitlines(keepends=True)
        faulty = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(faulty) == 1, faulty
        text = text.replace(faulty, "".join(line[1:] for line in lines if line[0] in " +"))
    return text


def run(source: str, name: str, folder: Path) -> Findings:
    module = name if name not in LEAKS else "program"
    (folder / f"{module}.py").write_text(source)
    return in_a_fresh_process(partial(findings_of, folder, module, "step"))


def without_sizes(message: str) -> str:
    """Return a message without numbers, except for the number of a line."""
    return re.sub(r"(?<![:\w])\d[\d,.]*", "#", message)


def test_every_pattern_with_lines_has_a_program() -> None:
    assert len(SECTIONS) == PAGE.count("```diff") == len(set(SECTIONS)) >= 17


@pytest.mark.parametrize("name", SECTIONS)
def test_the_message_of_the_page_is_real(name: str, tmp_path: Path) -> None:
    section = SECTIONS[name]
    found = run(section.source, name, tmp_path)
    message = " ".join(section.message.split())
    assert found.verdict == "leak"
    assert without_sizes(message) in map(without_sizes, found.messages), found.messages


@pytest.mark.parametrize("name", SECTIONS)
def test_the_fixed_lines_of_the_page_end_the_leak(name: str, tmp_path: Path) -> None:
    found = run(fixed(SECTIONS[name]), name, tmp_path)
    assert found.verdict == "flat", found.messages
