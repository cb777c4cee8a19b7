"""Errors that users can fix."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from reverie.utils.errors import USER_ERROR_EXIT_CODE, UserError, did_you_mean, exit_on_user_error


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


@contextmanager
def full_device() -> Iterator[TextIO]:
    with open("/dev/full", "w") as file:
        yield file


@contextmanager
def pipe_that_nobody_reads() -> Iterator[TextIO]:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as file:
        yield file


# The first is written at the end, the second immediately.
@pytest.mark.parametrize("size", [1, 1_000_000])
@pytest.mark.parametrize(
    ("lost", "reason"),
    [(full_device, "No space left on device"), (pipe_that_nobody_reads, "Broken pipe")],
)
def test_output_that_cannot_be_written_is_one_line_and_nothing_fails_later(
    lost: Callable[[], Iterator[TextIO]],
    reason: str,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with lost() as output:  # type: ignore[attr-defined]  # its end flushes the rest, like Python does
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as ended, exit_on_user_error():
            print("x" * size)
        assert ended.value.code == USER_ERROR_EXIT_CODE
    assert capsys.readouterr().err == f"error: the output cannot be written: {reason}.\n"


def test_letters_that_an_output_lacks_are_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    held = io.BytesIO()
    # LC_ALL=POSIX has the same effect.
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(held, "ascii"))
    with exit_on_user_error():
        # The second is the name of a file that is not valid UTF-8.
        print("größe.html, caf\udce9.html")
    assert held.getvalue() == rb"gr\xf6\xdfe.html, caf\udce9.html" + b"\n"


def test_a_closed_output_is_written_to_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with exit_on_user_error():
        sys.stdout.write("nobody reads this")
    assert sys.stdout is None
