"""Compare the size of the repository with `[tool.reverie.budget]` of pyproject.toml: `check_budget.py`.

Lines of code exclude docstrings, comments and blank lines, so explanations are free. A closure is the set of
files in `src` that an import loads, measured in lines. The script exits with 1 if a size exceeds its budget.
"""

import ast
import os
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from reverie.utils.errors import FlagParser, exit_on_user_error

ROOT = Path(__file__).parents[1]
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
SHOWN = 3

Total = Callable[[Collection[float]], float]


def code_lines(path: Path) -> int:
    """Return the number of lines in a Python file, excluding docstrings, comments and blank lines."""
    with tokenize.open(path) as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type not in NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def raw_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return path.read_bytes().count(b"\n")


def private_accesses(path: Path) -> int:
    """Return the number of accesses to private attributes of objects other than `self` and `cls`."""
    return sum(
        isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        for node in ast.walk(ast.parse(path.read_text()))
    )


def closure(name: str) -> list[Path]:
    """Return the files in `src` that are loaded by importing `name`, a module or an attribute of a module."""
    module, _, attribute = name.partition(":")
    code = f"import sys; from {module} import {attribute or '__name__'}; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    parts = [loaded.split(".")[1:] for loaded in shown.split() if loaded.split(".")[0] == "reverie"]
    files = (ROOT.joinpath("src", *part) for part in parts)
    both = ((file.with_suffix(".py"), file / "__init__.py") for file in files)
    return [file for pair in both for file in pair if file.is_file()]


def tracked() -> dict[str, int]:
    """Return the size in bytes of each file in git."""
    shown = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        name: (ROOT / name).stat().st_size for name in shown.stdout.split("\0") if (ROOT / name).is_file()
    }


def over(what: str, sizes: Mapping[str, float], budget: float, total: Total = sum) -> Iterator[str]:
    """Print a row, and yield a problem if the total of `sizes` exceeds its budget."""
    found = total(sizes.values())
    print(f"{what:<42}{found:>12,.6g}{budget:>12,.6g}")
    if found > budget:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:SHOWN]
        names = ", ".join(f"{name} ({sizes[name]:,.6g})" for name in largest)
        yield f"{what}: {found:,.6g} exceeds the budget of {budget:,.6g}. Largest: {names}."


def problems() -> Iterator[str]:
    """Print each size and its budget, and yield a sentence for each size that exceeds its budget."""
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["reverie"]["budget"]
    source = ROOT / "src"
    files_of_source = sorted([*source.rglob("*.py"), *source.rglob("*.pyi")])
    code = {str(file.relative_to(source)): code_lines(file) for file in files_of_source}
    lines = {name: raw_lines(source / name) for name in code}
    folders = (ROOT / "tests", *ROOT.glob("packages/*/tests"))
    tests = {
        str(file.relative_to(ROOT)): private_accesses(file)
        for folder in folders
        for file in folder.rglob("*.py")
    }
    files = tracked()
    new = {name: size / 1e3 for name, size in files.items() if name not in budget["large_files"]}
    print(f"{'':<42}{'now':>12}{'budget':>12}")
    for package, most in budget["code"].items():
        inside = {name: size for name, size in code.items() if Path(name).parts[0] == package}
        yield from over(f"src/{package}, lines of code", inside, most)
    yield from over("src, lines of code", code, budget["src"])
    for package in sorted(ROOT.glob("packages/*")):
        inside = {str(file.relative_to(ROOT)): file for file in sorted(package.glob("src/**/*.py"))}
        sizes = {name: code_lines(file) for name, file in inside.items()}
        yield from over(f"{package.name}, lines of code", sizes, budget["packages"].get(package.name, 0))
        lines |= {name: raw_lines(file) for name, file in inside.items()}
    yield from over("longest file", lines, budget["longest_file"], max)
    for name, most in budget["closure"].items():
        loaded = {str(file.relative_to(source)): raw_lines(file) for file in closure(name)}
        yield from over(f"{name}, lines loaded", loaded, most)
    yield from over("tests, private attributes", tests, budget["private_accesses"])
    yield from over("files in git, MB", {name: size / 1e6 for name, size in files.items()}, budget["tree_mb"])
    yield from over("largest file but for large_files, kB", new, budget["file_kb"], max)
    for package in {Path(name).parts[0] for name in code if os.sep in name} - budget["code"].keys():
        yield f"src/{package} has no budget. Give it one in [tool.reverie.budget.code]."


@exit_on_user_error()
def main() -> None:
    """Print all sizes. Exit with 1 if any of them exceeds its budget."""
    FlagParser(description=__doc__).parse_args()
    if found := list(problems()):
        repair = "Reduce it, or raise the budget in a separate commit that explains why."
        sys.exit("\n".join([*found, repair]))


if __name__ == "__main__":
    main()
