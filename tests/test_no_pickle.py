"""No file is loaded in a way that could run code in it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
ALLOWED = {"utils/memory/snapshots/reader.py"}  # an unpickler that refuses every global
FILES = sorted(SOURCE.rglob("*.py"))


def unsafe(tree: ast.AST) -> Iterator[str]:
    """What loads through unrestricted pickle, or runs text."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield module
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load"), keywords=keywords):
                if not any(
                    k.arg == "weights_only" and getattr(k.value, "value", 0) is True for k in keywords
                ):
                    yield "torch.load without weights_only=True"
            case ast.Call(func=ast.Attribute(attr="load"), keywords=keywords):
                if any(
                    k.arg == "allow_pickle" and getattr(k.value, "value", 1) is not False for k in keywords
                ):
                    yield "load with allow_pickle"
            case ast.Call(func=ast.Name(id="eval" | "exec")):
                yield "eval"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_file_of_the_package_loads_nothing_through_pickle(path: Path) -> None:
    found = list(unsafe(ast.parse(path.read_text())))
    if path.relative_to(SOURCE).as_posix() in ALLOWED:
        assert found == ["pickle"], "what is allowed is used"
    else:
        assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from dill import loads",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f, allow_pickle=True)",
        "eval(text)",
    ],
)
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    assert list(unsafe(ast.parse(text)))
