"""Files for repository hosts have the expected form, and agree with the package."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import reverie

ROOT = Path(__file__).parents[1]
FORMS = ("bug.yml", "memory_leak.yml", "question.yml")
INPUTS = {"textarea", "dropdown", "input"}


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_is_of_this_version() -> None:
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "version"} <= citation.keys()
    assert citation["version"] == reverie.__version__


@pytest.mark.parametrize("form", FORMS)
def test_a_form_asks_each_question_once(form: str) -> None:
    found = read(f".github/ISSUE_TEMPLATE/{form}")
    assert {"name", "description", "body"} <= found.keys()
    assert {item["type"] for item in found["body"]} <= INPUTS
    names = [item["id"] for item in found["body"]]
    assert len(names) == len(set(names)) and all(item["attributes"]["label"] for item in found["body"])


def test_the_public_checks_are_targets_of_the_makefile_on_every_tested_python() -> None:
    matrix = read(".github/workflows/ci.yml")["jobs"]["check"]["strategy"]["matrix"]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"lint", "test", "test-slow"} == set(matrix["target"]) <= targets
    classifiers = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    assert matrix["python"] == classifiers


def test_the_image_is_given_all_that_it_copies() -> None:
    kept = re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copies = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    named = " ".join(copies).split()
    assert sorted(named) == sorted(kept) and all((ROOT / name).exists() for name in named)
