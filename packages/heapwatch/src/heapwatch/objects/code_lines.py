"""Find the source lines of a program that add to, assign, or remove from a variable or an attribute.

The source is parsed and never executed.
"""

import ast
import functools
import linecache
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..texts import printable
from .readers import type_attribute

OWN_FOLDER = str(Path(__file__).parents[1])
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_INSTALLED = ("/site-packages/", "/dist-packages/")
_ADDS = frozenset("append appendleft extend insert add update setdefault put put_nowait".split())
_ADDS_TO_FIRST = frozenset("heappush insort insort_left insort_right".split())
_REMOVES = frozenset("pop popleft popitem clear remove discard".split())
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (ast.ClassDef, *_FUNCTIONS)
_MOST_SHOWN = 2
# The excerpt of a file shows this many lines before and after each place.
_AROUND = 2
# Further files are not parsed, to bound the time of a search.
_MOST_FILES = 40


class Lines(NamedTuple):
    """Places in the source such as `/app/file.py:7`, in the order of the file."""

    added: list[str]
    assigned: list[str]
    """Assignments in loops and functions, except in `__init__`."""
    defined: list[str]
    """All other assignments."""
    removed: list[str]

    @property
    def growth(self) -> tuple[str, ...]:
        """The first two lines that add to the name, else the first two that assign it, else ()."""
        return _shown(self.added or self.assigned or self.defined)


def lines_of(name: str, kind: type | None, module: str | None, function: str | None, key: str = "") -> Lines:
    """Return the lines that change an attribute of a class, a global of a module, or a function's variable.

    The search covers the class or function, then the file of the module. If neither has such a line, the only
    line in all files of the program counts. Lines that contain `key`, such as `'loss'`, are preferred. Lines
    that remove entries count in all files, because any of them may bound the growth.
    """
    mro = () if kind is None else type_attribute(kind, "__mro__")
    scopes = {function, *(type_attribute(base, "__name__") for base in mro)}
    modules = (*(type_attribute(base, "__module__") for base in mro), module)
    near = [file for each in modules if type(each) is str for file in _file_of(sys.modules.get(each))]
    inner, outer, every, elsewhere = (Lines([], [], [], []) for _ in range(4))
    for file, tree in _parsed((*near, *_user_files()), name):
        for node in ast.walk(tree) if file in near or function else ():
            if isinstance(node, _SCOPES) and node.name in scopes:
                _collect(node, name, key, file, inner)
        if file in near and kind is None:
            _collect(tree, name, key, file, outer)
        _collect(tree, name, key, file, every)
        # A local variable of the same name is not the attribute.
        _collect(tree, name, key or ("" if kind is None else f".{name}"), file, elsewhere)
    # Functions of the same name may be in several files.
    files = {place.rpartition(":")[0] for place in inner.added + inner.assigned}
    is_certain = not function or len(files) == 1
    is_unique = not function and len({*(elsewhere.added or elsewhere.assigned)}) == 1
    choices = ((inner, is_certain), (outer, True), (elsewhere, is_unique))
    usable = [each for each, is_usable in choices if is_usable and each.growth]
    # The definition is shown only if no line adds or assigns.
    found = max(usable, key=lambda each: bool(each.added or each.assigned), default=None)
    if found is None:
        return lines_of(name, kind, module, function) if key else Lines([], [], [], every.removed)
    return found._replace(removed=inner.removed if function else every.removed)


def calls_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that call a function with one of these names, or () if there are more than two."""
    found: list[str] = []
    for name in names:
        for file, tree in _parsed(_user_files(), name):
            calls = (each.func for each in ast.walk(tree) if isinstance(each, ast.Call))
            found += [f"{file}:{each.lineno}" for each in calls if _last_name(each) == name]
    return _shown(found) if len(set(found)) <= _MOST_SHOWN else ()


def passing_lines(code: types.CodeType) -> tuple[str, ...]:
    """Return the one or two lines that pass a function to a call, or else the first line of the function."""
    found: list[str] = []
    for file, tree in _parsed((code.co_filename,), code.co_name):
        for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
            arguments = (*call.args, *(each.value for each in call.keywords))
            found += [f"{file}:{call.lineno}"] * (code.co_name in map(_last_name, arguments))
    is_certain = 0 < len(set(found)) <= _MOST_SHOWN
    return _shown(found if is_certain else [f"{code.co_filename}:{code.co_firstlineno}"])


def is_library(file: str) -> bool:
    """Return whether a file is part of Python or of a package installed in any environment."""
    return file.startswith(LIBRARIES) or any(folder in file for folder in _INSTALLED)


def is_of_the_user(kind: type) -> bool:
    """Return whether a class is defined in the program, not in an installed library."""
    module = type_attribute(kind, "__module__")
    # In a notebook, `__main__` has no file.
    return type(module) is str and (module == "__main__" or bool(_file_of(sys.modules.get(module))))


def excerpt(place: str) -> str:
    """Return the numbered source lines around a place such as `/app/agent.py:7`, with a mark at this place.

    >>> excerpt("/no/such/file.py:7")
    ''
    """
    file, _, number = place.rpartition(":")
    first = max(1, int(number) - _AROUND)
    text = "".join(linecache.getlines(file)[first - 1 : int(number) + _AROUND]).expandtabs(4)
    lines = enumerate(textwrap.dedent(text).rstrip().split("\n") if text else [], first)
    return "\n".join(f"{'>' if i == int(number) else ' '} {i:>4}  {printable(line)}" for i, line in lines)


def _shown(places: list[str]) -> tuple[str, ...]:
    return tuple([*dict.fromkeys(places)][:_MOST_SHOWN])


def _user_files() -> Iterator[str]:
    """Yield the source files of all imported modules that are not installed."""
    for module in list(sys.modules.values()):
        yield from _file_of(module)


def _file_of(module: Any) -> list[str]:
    """Return the file of a module of the program, or []."""
    if not issubclass(type(module), types.ModuleType):
        return []
    file = type_attribute(types.ModuleType, "__dict__")["__dict__"].__get__(module).get("__file__")
    return [file] if type(file) is str and not is_library(file) and not file.startswith(OWN_FOLDER) else []


def _parsed(files: Iterable[str], name: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the files that contain a word, with their syntax trees."""
    parsed = 0
    for file in dict.fromkeys(files):
        text = "".join(linecache.getlines(file))
        if parsed < _MOST_FILES and re.search(rf"\b{re.escape(name)}\b", text):
            parsed += 1
            tree = _tree(text)
            if tree is not None:
                yield file, tree


@functools.lru_cache(maxsize=_MOST_FILES)
def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def forget_trees() -> None:
    """Release the syntax trees that the searches of one measurement share."""
    _tree.cache_clear()


def _last_name(node: ast.AST) -> str | None:
    """Return the name of a variable or an attribute, even behind indices and `setdefault`."""
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
        case ast.Subscript(base) | ast.Call(ast.Attribute(base, "setdefault")):
            return _last_name(base)
    return None


def _unpacked(targets: list[ast.expr]) -> Iterator[ast.expr]:
    """Yield the targets of an assignment, and the elements of tuples instead of the tuples."""
    for each in targets:
        yield from each.elts if isinstance(each, ast.Tuple) else (each,)


def _collect(root: ast.AST, name: str, key: str, file: str, found: Lines) -> None:
    """Add the lines below a node that change a name and contain a key."""
    stack: list[tuple[ast.AST, bool]] = [(root, False)]
    while stack:
        node, is_repeated = stack.pop()
        if isinstance(node, (*_FUNCTIONS, *_LOOPS)):
            is_repeated = getattr(node, "name", "") != "__init__"
        where = _changed(node, name, is_repeated, found)
        if where is not None and (not key or key in ast.unparse(node)):
            where.append(f"{file}:{node.lineno}")  # pyright: ignore[reportAttributeAccessIssue]
        stack.extend((each, is_repeated) for each in reversed([*ast.iter_child_nodes(node)]))


def _changed(node: ast.AST, name: str, is_repeated: bool, found: Lines) -> list[str] | None:
    """Return the list to which the line of a node belongs, or `None` if it does not change the name."""
    match node:
        case ast.Call(ast.Attribute(owner, "setdefault"), [ast.Constant(), *_]) if _last_name(owner) == name:
            # An entry with a constant key is added only once.
            return found.defined
        case ast.Call(ast.Attribute(owner, method)) if _last_name(owner) == name:
            # Libraries have methods such as `add_module`.
            is_added = method in _ADDS or method.startswith("add_")
            return found.added if is_added else found.removed if method in _REMOVES else None
        case ast.Call(ast.Name(function) | ast.Attribute(_, function), [first, *_]) if (
            function in _ADDS_TO_FIRST and _last_name(first) == name
        ):
            return found.added
        case ast.Delete(targets) if name in map(_last_name, targets):
            return found.removed
        case ast.AugAssign(target) if _last_name(target) == name:
            return found.added
        case ast.Assign(targets) if name in map(_last_name, parts := [*_unpacked(targets)]):
            [target] = [each for each in parts if _last_name(each) == name][:1]
            # An assignment to a constant key adds an entry only once, too.
            if isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Constant):
                return found.removed if isinstance(target.slice, ast.Slice) else found.added
            return found.assigned if is_repeated else found.defined
        case ast.AnnAssign(target, _, value) if value is not None and _last_name(target) == name:
            return found.assigned if is_repeated else found.defined
    return None
