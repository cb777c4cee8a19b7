"""Count translated phrasing in pages, docstrings, comments and messages, and check commit subjects.

Usage: `check_prose.py [FILE ...]`. Without files it prints each pattern's count and limit, and exits with 1
if one is exceeded. With files it lists every match in them. `[tool.reverie.prose]` of pyproject.toml contains
the limits, the exempt phrases, and the commit after which subjects are checked.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from reverie.utils.errors import FlagParser, exit_on_user_error

ROOT = Path(__file__).parents[1]
FEWEST_WORDS = 4
QUOTING = ("tests/", "packages/heapwatch/tests/", "packages/reverie-export/tests/", "scripts/check_prose.py")
MOST_CHARACTERS = 72
# A space in a pattern also matches a line break.
PATTERNS = {
    "P1 what-clause as a noun": r"\bwhat\b(?! if\b)(?![^.!?:;]*\?)",
    "P2 programs that say, tell or know": (
        r"\b(?:says?|said|saying|tells?|told|telling|knows?|knew)\b"
        r"|\bnames (?:the|it|its|them|every|each|who|which|both|an?)\b"
    ),
    "P3 nothing, nobody, none": r"\b(?:nothing|nobody|none|no one)\b",
    "P4 hold for contain, store, keep": r"\b(?:holds?|holding|held)\b",
    "P5 takes for accept, need, last": r"\b(?:takes|took)\b",
    "P6 that of, each of, the one in": r"\b(?:that|those|each) of\b|\bthe ones? (?:before|of|that|in|on)\b",
    "P7 who, whoever, whose": r"\b(?:who|whoever|whom|whose)\b",
    "P8 trailing which": r", which\b",
    "P9 postposed alone": r"\w alone\b",
    "P10 as in, as of": r", as (?:in|of|on|at|by|with|for|from|to|under|before|after)\b",
    "P11 is no X": r"\b(?:is|are|was|were) no\b(?! (?:longer|more|less|fewer)\b)",
    "P12 at once, anew, meanwhile": r"\b(?:at once|anew|at hand|meanwhile|on their way|next to|has begun)\b",
    "P13 semicolon": r";",
    "P14 participle heap": r"\bthat (?:\w+ ){1,4}?(?:has|have|had) \w+(?:ed|en|wn|nt|ld|de|ut|pt)\b",
}
COMPILED = {name: re.compile(regex.replace(" ", r"\s+"), re.IGNORECASE) for name, regex in PATTERNS.items()}
CODE = re.compile(
    r"^ *(`{3,})[^`]*?\n.*?^ *\1`*$"  # fenced block
    r"|(?<=\n\n) {4}[^\n]*(?:\n+ {4}[^\n]*)*"  # indented block
    r"|^ *>>>[^\n]*(?:\n *\S[^\n]*)*"  # doctest
    r"|^ *>[^\n]*"  # block quotation
    r"|`[^`]+`|\{[^{}]*\}|\]\([^)]*\)|<[^<>\n]*>|https?://\S+|\bNone\b"
    r'|"(?:[^"\n]|\n(?!\s*\n))*"|“[^”]*”',
    re.DOTALL | re.MULTILINE,
)
COMMENT = re.compile(r"(?:^[ \t]*#+:? [^\n]*(?:\n|$))+|[ \t]# [^\n]*", re.MULTILINE)
ECHO = re.compile(r'@echo "([^"]*)"')
NOT_IMPERATIVE = re.compile(r"(?:An?|The|This|It|No)$|\w+(?:(?<!e)ed|ing|(?<!s)s)$")
IMPERATIVE = {"Bring", "Embed", "Focus", "Bias", "Shed", "Wed", "Alias", "Canvas"}


class Match(NamedTuple):
    """A match of a pattern and its location."""

    pattern: str
    file: str
    line: int
    text: str


def git(*arguments: str) -> list[str] | None:
    """Return the output lines of a git command, or `None` if it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.splitlines()


def strings(tree: ast.AST, has_messages: bool) -> Iterator[tuple[int, int, str]]:
    """Yield the first line, the last line and the text of docstrings, and of messages if `has_messages`.

    A message is a string of at least four words. The expressions of an f-string become `{}`. The text of any
    other string is empty.
    """
    seen = set[int]()
    for node in ast.walk(tree):
        is_docstring = isinstance(node, ast.Expr)
        value = node.value if isinstance(node, ast.Expr) else node
        if isinstance(value, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in value.values
            )
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            text = value.value
        else:
            continue
        if id(value) not in seen:
            seen.update(id(part) for part in ast.walk(value))
            is_shown = is_docstring or (has_messages and len(text.split()) >= FEWEST_WORDS)
            yield value.lineno, value.end_lineno or 0, text if is_shown else ""


def prose(name: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each docstring, comment, message or page in a file.

    Strings of tests and of this script do not count, because they quote messages and patterns.
    """
    if name.endswith(".md"):
        yield 1, source
        return
    in_strings = set[int]()
    if name.endswith(".py"):
        for first, last, text in strings(ast.parse(source), not name.startswith(QUOTING)):
            yield first, text
            in_strings.update(range(first, last + 1) if last > first else ())
    else:
        yield from ((source.count("\n", 0, m.start()) + 1, m[1]) for m in ECHO.finditer(source))
    for match in COMMENT.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        if line not in in_strings:
            yield line, re.sub(r"(?m)^[ \t]*#+:? ?", "", match[0])


def matches(name: str, source: str, exceptions: Iterable[str] = ()) -> Iterator[Match]:
    """Yield every match of a pattern in the prose of a file, outside code, quotations and exceptions."""
    skipped = re.compile("|".join(map(re.escape, exceptions)) or "(?!)", re.IGNORECASE)
    for first, block in prose(name, source):
        text = skipped.sub("", CODE.sub(lambda match: "\n" * match[0].count("\n"), block))
        for pattern, regex in COMPILED.items():
            for match in regex.finditer(text):
                start, end = max(0, match.start() - 30), match.end() + 30
                line = first + text.count("\n", 0, match.start())
                yield Match(pattern, name, line, " ".join(text[start:end].split()))


def subject_problem(subject: str) -> str | None:
    """Return why a commit subject is rejected, or `None` if it is accepted."""
    verb = (subject.split() or [""])[0]
    if len(subject) > MOST_CHARACTERS:
        return f"is longer than {MOST_CHARACTERS} characters"
    if ";" in subject or subject.endswith("."):
        return "contains a semicolon or ends in a period"
    if not verb[:1].isupper() or (NOT_IMPERATIVE.match(verb) and verb not in IMPERATIVE):
        return "does not start with a capitalized verb in the imperative"
    return None


@exit_on_user_error()
def main() -> None:
    """Print the counts, or the matches in the given files. Exit with 1 if a count exceeds its limit."""
    parser = FlagParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["reverie"]["prose"]
    if files := parser.parse_args().files:
        for path in files:
            for match in matches(str(path), path.read_text(), settings["exceptions"]):
                print(f"{match.file}:{match.line}: {match.pattern.split()[0]}: {match.text}")
        return
    tracked = git("ls-files", "*.py", "*.md", "*.yaml", "*.yml", "*.toml", "Makefile")
    found = [
        match
        for name in tracked or ()
        if (ROOT / name).is_file()
        for match in matches(name, (ROOT / name).read_text(), settings["exceptions"])
    ]
    problems: list[str] = []
    print(f"{'':<42}{'now':>12}{'limit':>12}")
    for pattern in PATTERNS:
        by_file = Counter(match.file for match in found if match.pattern == pattern)
        limit = settings["limits"][pattern.split()[0]]
        print(f"{pattern:<42}{by_file.total():>12,}{limit:>12,}")
        if by_file.total() > limit:
            largest = ", ".join(f"{name} ({count})" for name, count in by_file.most_common(3))
            problems.append(
                f"{pattern}: {by_file.total():,} is above the limit of {limit:,}. Most in: {largest}."
            )
    subjects = git("log", "--no-merges", "--format=%h %s", f"{settings['base']}..HEAD")
    if tracked is None or subjects is None:
        print(f"Skipped the checks that need git history since {settings['base'][:8]}.")
    for line in subjects or ():
        commit, _, subject = line.partition(" ")
        if problem := subject_problem(subject):
            problems.append(f"Commit {commit} {problem}: {subject}")
    if problems:
        sys.exit(
            "\n".join([*problems, "Rewrite them; scripts/check_prose.py FILE lists the matches in a file."])
        )


if __name__ == "__main__":
    main()
