"""Known leaks of libraries are reported with their link, where the version with the leak is installed.

The docstring of each program contains the command that installs this version. Run the test with
`PYTHONPATH=known/structlog/site-packages`, for example.
"""

import tomllib
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from heapwatch.objects import patterns

from .fresh import in_a_fresh_process
from .watching import findings_of

FOLDER = Path(__file__).parent / "known_leaks"
LEAKS = {
    each["package"]: each
    for each in tomllib.loads(Path(patterns.__file__).with_name("known_leaks.toml").read_text())["leak"]
}


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def test_every_known_leak_has_a_program_with_its_versions() -> None:
    texts = {file.stem: file.read_text() for file in FOLDER.glob("*.py")}
    assert texts.keys() == {f"leak_{name}" for name in LEAKS}
    for name, leak in LEAKS.items():
        _, fixed, link = leak["fix"].rsplit(" ", 2)
        versions = f"{leak['since']} to {leak['until']} (fixed in {fixed.rstrip(':')})"
        install = f"pip install --target known/{name}/site-packages {name}=={leak['until']}"
        for line in (f"Report: {link}\n", f"Versions: {versions}\n", f"Install: {install}\n"):
            assert line in texts[f"leak_{name}"]


def test_another_version_and_another_owner_are_no_known_leak() -> None:
    for name, leak in LEAKS.items():
        if f"{name} {installed(name)}:" in leak["fix"] or installed(name) is None:
            assert patterns.known_leak(leak["owners"][0]) is None
    assert patterns.known_leak("train.HISTORY") is None


@pytest.mark.parametrize("name", LEAKS)
def test_a_known_leak_is_reported_with_its_link(name: str) -> None:
    leak = LEAKS[name]
    found = installed(name)
    if found not in (leak["since"], leak["until"]):
        pytest.skip(f"needs {name}=={leak['until']}")
    result = in_a_fresh_process(partial(findings_of, FOLDER, f"leak_{name}", "step"))
    assert result.verdict == "leak"
    assert any(
        f" is a known leak of {name} {found}: " in message and message.endswith(f". {leak['fix']}")
        for message in result.messages
    ), result.messages


@pytest.mark.parametrize("name", LEAKS)
def test_the_fixed_version_is_flat(name: str) -> None:
    if f"{name} {installed(name)}:" not in LEAKS[name]["fix"]:
        pytest.skip(f"needs another version: {LEAKS[name]['fix']}")
    result = in_a_fresh_process(partial(findings_of, FOLDER, f"leak_{name}", "step"))
    assert result.verdict == "flat", result.messages
