"""A command's own settings are parsed from the arguments, and its help is made from their docstrings."""

from dataclasses import dataclass

import pytest

from reverie.commands.options import own_settings
from reverie.config.schema import Device
from reverie.utils.errors import UserError


@dataclass(kw_only=True, slots=True)
class Errand:
    """Settings of a fictional command."""

    place: str | None = "home"
    """Destination, in a docstring
    of two lines."""

    hours: float = 1.5
    """How long."""

    device: Device = Device.auto
    """On what."""


def test_values_are_taken_by_type_and_the_last_one_counts() -> None:
    typed = ["go.place=007", "go.hours=2", "go.device=cpu", "go.hours=3"]
    errand = Errand(place="007", hours=3.0, device=Device.cpu)
    assert own_settings(Errand, ["seed=1", *typed], "go", "", "go.") == (errand, ["seed=1"])
    assert own_settings(Errand, [], "go", "", "go.") == (Errand(), [])
    assert own_settings(Errand, ["place=null"], "go", "")[0].place is None
    assert own_settings(Errand, ["place=a=b"], "go", "")[0].place == "a=b"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("go.plase=x", "go.plase=x is not a setting of go \\(go.place=, go.hours=, go.device=\\). Did"),
        ("--fast", "unknown flag --fast. go accepts settings as key=value, and --help"),
        ("go.place", "go.place is not a setting of go"),
        ("go.place=${hours}", "go accepts only plain values"),
        ("go.hours=null", "^go.hours=null: go.hours must be a number, got `null`. Omit it for 1.5.$"),
        ("go.hours=long", "^go.hours=long: go.hours must be a number, got `long`. Omit it for 1.5.$"),
        ("go.device=gpu", "^go.device=gpu: .* one of auto, cpu, cuda, got `gpu`. Did you mean `cuda`?"),
    ],
)
def test_a_mistake_is_told_with_what_there_is(argument: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        own_settings(Errand, [argument], "go", "", "go.")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_has_a_line_for_each_setting(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        own_settings(Errand, ["go.place=x", flag], "go", "Go.\n", "go.")
    assert ended.value.code == 0
    assert capsys.readouterr().out == (
        "Go.\n\nSettings, with their defaults:\n"
        "  go.place=home   Destination, in a docstring of two lines. Text or null.\n"
        "  go.hours=1.5    How long. A number.\n"
        "  go.device=auto  On what. One of auto, cpu, cuda.\n"
    )


def test_a_value_without_a_key_is_probably_that_of_the_first_setting() -> None:
    with pytest.raises(UserError, match=r"Did you mean `place=pretrained:pong`\?"):
        own_settings(Errand, ["pretrained:pong"], "go", "")


@dataclass(kw_only=True, slots=True)
class Delivery:
    """Settings with a required one."""

    parcel: str
    """Number of the parcel."""

    weight: float = 1.0
    """Kilograms."""


def test_a_setting_without_a_default_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    missing = r"^parcel is missing. Write parcel=VALUE. Number of the parcel.$"
    with pytest.raises(UserError, match=missing):
        own_settings(Delivery, ["weight=2"], "go", "")
    with pytest.raises(UserError, match=r"^parcel=null: parcel must be text, got `null`.$"):
        own_settings(Delivery, ["parcel=null"], "go", "")
    with pytest.raises(UserError, match=r"^parcel= has no value. Write parcel=VALUE.$"):
        own_settings(Delivery, ["parcel="], "go", "")
    assert own_settings(Delivery, ["parcel=7"], "go", "")[0] == Delivery(parcel="7")
    with pytest.raises(SystemExit):
        own_settings(Delivery, ["--help"], "go", "")
    assert "\n  parcel=VALUE  Number of the parcel. Text.\n" in capsys.readouterr().out
