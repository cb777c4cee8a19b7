"""`scripts/check_prose.py`: text that counts for each pattern, text that does not, and commit subjects."""

import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
COUNTED = {
    "P1": "Return what a run holds.",
    "P2": "The log says how many steps remain.",
    "P3": "Return -1 if there is nothing.",
    "P4": "The buffer holds a thousand steps.",
    "P5": "An update takes a second.",
    "P6": "The mean is that of the batch.",
    "P7": "Find whoever keeps the graph.",
    "P8": "It reads the file, which is slow.",
    "P9": "Load the networks alone.",
    "P10": "Choose a folder, as in an earlier run.",
    "P11": "The value is no number.",
    "P12": "Close the file at\nonce.",
    "P13": "It reads; it writes.",
    "P14": "Load a replay that several ranks have saved.",
}
NOT_COUNTED = """\
What is a latent?
Without a checkpoint it returns None. The score is no longer logged.

    print("nothing"); say(what)

`what` and "nothing takes hold; it says" are quoted, [as is](what_holds.md) an address.

> Nobody says what it takes.

```
nothing; alone
```
"""
SOURCE = '''\
"""Say what.

>>> nothing
what
"""
URL = "what; nothing"  # alone; a comment
# A comment that stands above the code and
# takes two lines.
def f(path: str) -> str:
    text = """
    # what: text
    """
    raise ValueError(f"{path} is no folder; " "choose another.")
'''


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "check_prose.py"))


def patterns(script: dict[str, Any], name: str, text: str, exceptions: tuple[str, ...] = ()) -> list[str]:
    return [match.pattern.split()[0] for match in script["matches"](name, text, exceptions)]


@pytest.mark.parametrize("pattern", COUNTED)
def test_each_pattern_counts_an_example_of_it(script: dict[str, Any], pattern: str) -> None:
    assert pattern in patterns(script, "page.md", COUNTED[pattern])
    assert pattern in patterns(
        script, "page.yaml", f"# {COUNTED[pattern].replace(chr(10), chr(10) + '# ')}\n"
    )


def test_code_quotations_questions_and_exceptions_do_not_count(script: dict[str, Any]) -> None:
    assert patterns(script, "page.md", NOT_COUNTED) == []
    assert patterns(script, "page.md", "A held-out game is held.", ("held-out",)) == ["P4"]


def test_docstrings_comments_and_messages_count_where_they_stand(script: dict[str, Any]) -> None:
    found = [(match.pattern.split()[0], match.line) for match in script["matches"]("src/a.py", SOURCE)]
    assert sorted(found) == [("P1", 1), ("P11", 13), ("P13", 6), ("P13", 13), ("P2", 1), ("P5", 8)]
    for quoting in ("tests/a.py", "packages/heapwatch/tests/a.py"):
        assert sorted(patterns(script, quoting, SOURCE)) == ["P1", "P13", "P2", "P5"]


def test_every_pattern_has_a_limit(script: dict[str, Any]) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["reverie"]["prose"]
    assert [name.split()[0] for name in script["PATTERNS"]] == list(settings["limits"]) == list(COUNTED)


@pytest.mark.parametrize(
    "subject",
    ["Pass the seed to each rank", "Embed the logo", "Feed batches in order", "Address `ulimit -v`"],
)
def test_an_imperative_subject_is_accepted(script: dict[str, Any], subject: str) -> None:
    assert script["subject_problem"](subject) is None


@pytest.mark.parametrize(
    "subject",
    [
        "Added a test",
        "Fixes the seed",
        "Writing pages",
        "A count",
        "fix the seed",
        "Fix the seed; add a test",
        "Fix the seed.",
        "Fix " + 69 * "x",
        "",
    ],
)
def test_other_subjects_are_refused(script: dict[str, Any], subject: str) -> None:
    assert script["subject_problem"](subject) is not None


def test_a_tree_above_a_limit_fails_and_one_without_git_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "check_prose.py", tmp_path / "scripts")
    limits = "".join(f"P{number} = 0\n" for number in range(1, 15))
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.reverie.prose]\nbase = "HEAD"\nexceptions = []\n[tool.reverie.prose.limits]\n{limits}'
    )
    (tmp_path / "page.md").write_text("It reads; it writes.\n")

    def check(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "scripts/check_prose.py", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    skipped = check()
    assert skipped.returncode == 0 and "Skipped" in skipped.stdout.splitlines()[-1]
    listed = check("page.md")
    assert listed.returncode == 0 and listed.stdout == "page.md:1: P13: It reads; it writes.\n"
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Write a page"]
    for command in (["init", "-q"], ["add", "page.md"], commit):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    failed = check()
    assert failed.returncode == 1 and "P13 semicolon: 1 is above the limit of 0." in failed.stderr
