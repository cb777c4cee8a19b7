"""Settings of a command itself come in as they are typed, and its help tells them out of their docstrings."""

from dataclasses import dataclass

import pytest

from reverie.commands.options import asks_for_help, read_settings, settings_help
from reverie.config.schema import Device
from reverie.utils.errors import UserError


@dataclass(kw_only=True, slots=True)
class Errand:
    """Settings of nothing."""

    place: str | None = "home"
    """Where it goes, which may take
    a second line."""

    hours: float = 1.5
    """How long."""

    device: Device = Device.auto
    """On what."""


def test_values_are_taken_by_type_and_the_last_one_counts() -> None:
    typed = ["go.place=007", "go.hours=2", "go.device=cpu", "go.hours=3"]
    assert read_settings(Errand, typed, "go", "go.") == Errand(place="007", hours=3.0, device=Device.cpu)
    assert read_settings(Errand, [], "go", "go.") == Errand()
    assert read_settings(Errand, ["place=null"], "go").place is None
    assert read_settings(Errand, ["place=a=b"], "go").place == "a=b"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("go.plase=x", "go.plase=x is not a setting of go; they are go.place=, go.hours=, go.device=. Did"),
        ("place=x", "place=x is not a setting of go"),
        ("go.place", "go.place is not a setting of go"),
        ("go.place=${hours}", "go takes plain values"),
        ("go.hours=long", "^go.hours: Value 'long'"),
        ("go.device=gpu", "^go.device: Invalid value 'gpu'"),
    ],
)
def test_a_mistake_is_told_with_what_there_is(argument: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("$", r"\$")):
        read_settings(Errand, [argument], "go", "go.")


def test_help_has_a_line_for_each_setting() -> None:
    assert settings_help(Errand, "go.") == (
        "Settings, with their defaults:\n"
        "  go.place=home   Where it goes, which may take a second line. Text or null.\n"
        "  go.hours=1.5    How long. A number.\n"
        "  go.device=auto  On what. One of auto, cpu, cuda.\n"
    )
    assert asks_for_help(["a=b", "-h"]) and asks_for_help(["--help"]) and not asks_for_help(["help"])
