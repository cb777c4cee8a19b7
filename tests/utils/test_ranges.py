"""A number out of range is rejected with the key that the user typed, and with the range."""

from dataclasses import dataclass
from typing import Any

import pytest

from reverie.utils.errors import UserError, require_range


@dataclass
class Section:
    size: float | None = 1


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "text"),
    [
        ({"ge": 1}, [1, 10**400], [0, -1.5], "at least 1"),
        ({"gt": 0}, [1e-300], [0, -1], "> 0"),
        ({"le": 5}, [5, -9], [6], "at most 5"),
        ({"lt": 5}, [4.9], [5], "< 5"),
        ({"ge": 0, "le": 1}, [0, 1], [-0.1, 1.1], r"in \[0, 1\]"),
        ({"ge": 0, "lt": 1}, [0, 0.9], [1], r"in \[0, 1\)"),
        ({"gt": 0, "le": 1}, [1], [0], r"in \(0, 1\]"),
    ],
)
def test_each_limit_has_its_sentence(
    limits: dict[str, Any], inside: list[float], outside: list[float], text: str
) -> None:
    for value in [*inside, None]:
        require_range("room", Section(value), "size", **limits)
    for value in outside:
        with pytest.raises(UserError, match=rf"^room\.size must be {text}, got {value}\.$"):
            require_range("room", Section(value), "size", **limits)


def test_a_setting_without_a_section_is_named_alone_and_has_to_be_finite() -> None:
    with pytest.raises(UserError, match=r"^size must be a finite number, got nan\.$"):
        require_range("", Section(float("nan")), "size", ge=0)


def test_a_value_that_is_not_a_number_is_refused_with_its_key() -> None:
    section: Any = Section("x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"^room\.size must be a number, got 'x'\.$"):
        require_range("room", section, "size", ge=1)
