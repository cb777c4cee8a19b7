"""All examples in the package's docstrings run and produce the documented results."""

import ast
import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import reverie

PACKAGE = Path(reverie.__file__).parent
MODULES = ["reverie", *(module.name for module in pkgutil.walk_packages(reverie.__path__, "reverie."))]


def source_of(module_name: str) -> Path:
    path = PACKAGE.joinpath(*module_name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def examples_in(module_name: str) -> Iterator[doctest.DocTest]:
    """Find examples in the source, because doctest's own finder silently skips decorated functions."""
    path = source_of(module_name)
    module = importlib.import_module(module_name)
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text), lineno=line)) if ">>>" in text:
                name = f"{module_name}:{line}"
                yield doctest.DocTestParser().get_doctest(text, dict(vars(module)), name, str(path), line - 1)


@pytest.mark.parametrize("module_name", [name for name in MODULES if ">>>" in source_of(name).read_text()])
def test_every_example_of_the_module_gives_what_it_shows(module_name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for example in examples_in(module_name):
        runner.run(example, out=report.append)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(report)


def test_every_source_file_is_reached() -> None:
    assert {source_of(name) for name in MODULES} == set(PACKAGE.rglob("*.py"))
