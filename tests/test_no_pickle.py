"""No file is loaded in a way that could run code in it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {
    "_pickle",
    "cloudpickle",
    "code",
    "dill",
    "jsonpickle",
    "joblib",
    "marshal",
    "pickle",
    "runpy",
    "shelve",
}
BUILTINS = {"__import__", "compile", "eval", "exec"}
CALLS = {
    "hydra.utils.instantiate",
    "hydra.utils.call",
    "pandas.read_pickle",
    "torch.jit.load",
    "torch.hub.load",
    "torch.package.PackageImporter",
    *(f"yaml.{name}" for name in ("load", "load_all", "full_load", "full_load_all")),
    *(f"yaml.{name}" for name in ("unsafe_load", "unsafe_load_all", "Loader", "FullLoader", "UnsafeLoader")),
}
NUMPY = {"numpy.load", "numpy.lib.npyio.load", "numpy.lib.format.read_array"}
HEAPWATCH = "packages/heapwatch/src/heapwatch"
ALLOWED = {
    # This unpickler rejects all globals.
    f"{HEAPWATCH}/snapshots/reader.py": ["pickle"],
    # Runs the user's program, like `python`.
    f"{HEAPWATCH}/watch/command.py": ["exec", "compile"],
    # Reads the names that the source of a loaded module uses. The compiled code never runs.
    f"{HEAPWATCH}/objects/capacity.py": ["compile"],
}
FOLDERS = ("src", "packages/heapwatch/src", "packages/reverie-export/src", "scripts", "docs")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def unsafe(tree: ast.AST) -> Iterator[str]:
    """Yield uses of unrestricted pickle or of code execution, under any imported name."""
    names = imported(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=modules):
                yield from (m.name for m in modules if m.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield module
            case ast.Call(func=function, keywords=keywords):
                given = {k.arg: getattr(k.value, "value", "?") for k in keywords}
                called = dotted(function, names)
                if (
                    called in ("torch.load", "torch.serialization.load")
                    and given.get("weights_only") is not True
                ):
                    yield "torch.load without weights_only=True"
                elif (called in NUMPY or "allow_pickle" in given) and given.get(
                    "allow_pickle", False
                ) is not False:
                    yield "load with allow_pickle"
            case ast.Name(id=name, ctx=ast.Load()) if name in BUILTINS:
                yield name
        if isinstance(node, ast.Attribute | ast.Name) and (found := dotted(node, names)) in CALLS:
            yield found


def imported(tree: ast.AST) -> dict[str, str]:
    """Return the full name of each imported name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """Return the full name of an expression, or '' for other expressions."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value, names)):
        return f"{owner}.{node.attr}"
    return ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_of_the_package_loads_nothing_through_pickle(path: Path) -> None:
    # The allowed names are used, and no others.
    assert list(unsafe(ast.parse(path.read_text()))) == ALLOWED.get(path.relative_to(ROOT).as_posix(), [])


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import pickle as harmless",
        "from dill import loads",
        "import shelve, marshal",
        "import joblib.memory",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "torch.load(f, weights_only=flag)",
        "import torch as t\nt.load(f)",
        "from torch import load as read\nread(f)",
        "torch.jit.load(f)",
        "np.load(f, allow_pickle=True)",
        "import numpy\nnumpy.load(f, allow_pickle=flag)",
        "yaml.load(f)",
        "yaml.load(f, Loader=yaml.SafeLoader)",
        "from yaml import unsafe_load\nunsafe_load(f)",
        "import yaml as y\ny.full_load(f)",
        "eval(text)",
        "exec(text)",
        "register('eval', eval)",
        "__import__(name)",
        "from hydra.utils import instantiate\ninstantiate(config)",
    ],
)
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    assert list(unsafe(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "torch.load(f, weights_only=True)",
        "np.load(f)",
        "np.load(f, allow_pickle=False)",
        "yaml.safe_load(f)",
        "json.load(f)",
        "re.compile(text)",
        "model.eval()",
        "replay.load(f)",
    ],
)
def test_the_search_passes_over_what_runs_nothing(text: str) -> None:
    assert list(unsafe(ast.parse(text))) == []
