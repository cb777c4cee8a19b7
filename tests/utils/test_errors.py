"""Errors that users can repair."""

import pytest

from reverie.utils.errors import USER_ERROR_EXIT_CODE, UserError, did_you_mean


def test_a_user_error_is_a_value_error_with_exit_code_2() -> None:
    assert issubclass(UserError, ValueError)
    assert USER_ERROR_EXIT_CODE == 2


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("pnog", " Did you mean `pong`?"),
        ("capcity", " Did you mean `capacity`?"),
        ("xyzzy", ""),
    ],
)
def test_the_nearest_known_name_is_offered_and_none_that_is_far(typed: str, expected: str) -> None:
    assert did_you_mean(typed, ["pong", "boxing", "capacity"]) == expected


def test_known_names_may_come_from_a_generator() -> None:
    assert did_you_mean("boxin", (name for name in ["pong", "boxing"])) == " Did you mean `boxing`?"


def test_without_known_names_nothing_is_offered() -> None:
    assert did_you_mean("pong", []) == ""
