"""The budgets of pyproject.toml: the counted sizes, and the report of a size that exceeds one."""

import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SAMPLE = '''"""A docstring
of two lines."""

LIMIT = 3
"""An attribute's docstring."""
import os  # a comment at the end of a line is no line of its own


# A comment.
class A:
    """Another."""

    def f(self, other):
        """Another."""
        text = """not a
        docstring"""
        return self._mine, other._theirs, other.__class__, text, os
'''
"""Seven lines of code, and one private attribute of something else."""


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "check_budget.py"))


def test_code_is_counted_without_docstrings_comments_and_blank_lines(
    script: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE)
    assert script["code_lines"](tmp_path / "sample.py") == 7
    assert script["raw_lines"](tmp_path / "sample.py") == 17
    assert script["private_accesses"](tmp_path / "sample.py") == 1


def test_a_closure_has_what_an_import_loads_and_no_more(script: dict[str, Any]) -> None:
    units, play = (
        {path.relative_to(ROOT / "src").as_posix() for path in script["closure"](name)}
        for name in ("reverie.utils.units", "reverie:load")
    )
    assert {"__init__.py", "utils/__init__.py", "utils/units.py"} <= units < play
    assert "models/rssm.py" in play - units


def test_what_is_over_its_budget_is_named_with_its_largest_parts(
    script: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"a.py": 5, "b.py": 1_000, "c.py": 20, "d.py": 7}
    assert list(script["over"]("lines", sizes, 1_032)) == []
    (problem,) = script["over"]("lines", sizes, 1_000)
    assert problem == "lines: 1,032 exceeds the budget of 1,000. Largest: b.py (1,000), c.py (20), d.py (7)."
    assert capsys.readouterr().out.count("\n") == 2


def test_the_tree_is_small_and_the_exceptions_are_there(script: dict[str, Any]) -> None:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["reverie"]["budget"]
    files = script["tracked"]()
    assert sum(files.values()) <= budget["tree_mb"] * 1e6 <= 40e6
    assert {name for name, size in files.items() if size > budget["file_kb"] * 1e3} == {
        *budget["large_files"]
    }
