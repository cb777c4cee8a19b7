"""The sections of docs/leak_patterns.md: the lines of a program, and the message about its leak."""

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

from .leaky_programs import LEAKS

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


def without_sizes(message: str) -> str:
    """Return a message without numbers, except for the number of a line."""
    return re.sub(r"(?<![:\w])\d[\d,.]*", "#", message)


def require_message_of_the_page(name: str, messages: list[str]) -> None:
    """Require that a program's messages include the page's message, if the page has a section about it."""
    if name in SECTIONS:
        expected = " ".join(SECTIONS[name].message.split())
        assert without_sizes(expected) in map(without_sizes, messages), messages
