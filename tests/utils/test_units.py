"""Numbers agree with their nouns in all printed texts."""

import ast
import re
from pathlib import Path

import pytest

from reverie.utils.units import count_text

_ROOT = Path(__file__).parents[2]
_COUNTED = re.compile(
    r" (agent |random |learning )?(actions|arrays|blocks|checkpoints|choices|collectors|environments|episodes"
    r"|frames|games|groups|hours|kills|members|minutes|nodes|numbers|parameters|parts|points|ranks|records"
    r"|restarts|rewards|runs|samples|searches|seconds|seeds|snapshots|steps|threads|transitions|updates"
    r"|windows|workers)\b(?! workflow=)"
)
_HAS_DECIMALS = re.compile(r"\.[1-9]\d*f")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 steps"),
        (1, "1 step"),
        (1.0, "1 step"),
        (2.0, "2 steps"),
        (0.5, "0.5 steps"),
        (1234, "1,234 steps"),
    ],
)
def test_a_count_of_one_has_a_singular_noun_and_no_decimals(number: float, text: str) -> None:
    assert count_text(number, "step") == text


@pytest.mark.parametrize("folder", ["src", "scripts", "benchmarks"])
def test_no_number_is_put_before_a_plural_noun_without_count_text(folder: str) -> None:
    found = [place for path in sorted((_ROOT / folder).rglob("*.py")) for place in _plurals(path)]
    assert not found


def _plurals(path: Path) -> list[str]:
    """Return the places where a formatted value precedes a plural noun."""
    places: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        pairs = zip(node.values, node.values[1:], strict=False) if isinstance(node, ast.JoinedStr) else ()
        for value, text in pairs:
            if not (isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant)):
                continue
            form = ast.unparse(value.format_spec) if value.format_spec else ""
            is_constant = ast.unparse(value.value).isupper()
            if _COUNTED.match(str(text.value)) and not (is_constant or _HAS_DECIMALS.search(form)):
                places.append(f"{path.relative_to(_ROOT)}:{value.lineno} {ast.unparse(value)}{text.value}")
    return places
