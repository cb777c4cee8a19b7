"""Find the capacity of a container in the code that fills it: the number that bounds its length.

A bound may have any name, and an attribute called `capacity` need not be a bound. This module therefore reads
the source of the owner's methods, or of a module and its functions. A comparison of the container's length
with a number counts if it decides whether the container changes. No method is executed.
"""

import ast
import collections
import copy
import dis
import inspect
import linecache
import math
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from operator import add, floordiv, mul, sub
from typing import Any, NamedTuple

import numpy as np

from .readers import type_attribute, type_name

_Tree = ast.FunctionDef | ast.AsyncFunctionDef
_Pair = tuple[ast.expr, ast.expr]
# A class, or a module with containers as variables.
_Owner = Any

_CONTAINERS: tuple[Any, ...] = (list, dict, set, collections.deque)
_CHANGES = frozenset(
    "append appendleft extend insert add update setdefault pop popleft popitem clear remove discard "
    "__setitem__ __delitem__".split()
)
_CHANGES_OF_FIRST = _CHANGES.union("heappush heappushpop heapreplace insort insort_left insort_right".split())
_EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_CALLS: dict[str, Callable[..., Any]] = {"int": int, "float": float, "max": max, "min": min}
_ARITHMETIC = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv}
_SLICES = {number for name, number in dis.opmap.items() if name in ("BUILD_SLICE", "BINARY_SLICE")}
# The limit of a container with slots that exist before they are used.
ALLOCATED = "allocated"
# The name of a module's code outside its functions.
_PROGRAM = "<module>"
# The maximum depth of nested substitutions of variables.
_DEPTH = 5


class Bound(NamedTuple):
    """A container with a capacity."""

    path: str
    """Path from the owner to the container, such as `.storage`, or "" if the owner is the container."""
    held: int
    capacity: int
    limit: str
    """Source code of the capacity, such as `buffer_size` for `self.buffer_size`."""


class _Rule(NamedTuple):
    """A comparison that decides whether a container changes. All fields are expressions of `self`."""

    container: ast.expr
    limit: ast.expr
    compared: ast.expr
    """The container whose length is compared: `container`, or another container of the same length."""


class Capacities:
    """Finds the bounded containers of objects. The source of each class is read once."""

    def __init__(self) -> None:
        # The keys are ids, because a metaclass may define the hash.
        self._rules: dict[int, tuple[_Owner, list[_Rule]]] = {}

    def of(self, owner: Any) -> Iterator[Bound]:
        """Yield the bounded containers of an object or a module, one item per bound."""
        kind = owner if type(owner) is types.ModuleType else type(owner)
        if id(kind) not in self._rules:
            self._rules[id(kind)] = kind, list(_rules(kind))
        for rule in self._rules[id(kind)][1]:
            with suppress(ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError):
                held, limit = _length(_value(rule.container, owner)), _number(rule.limit, owner)
                # Libraries use the largest integer for "unlimited".
                if held == _length(_value(rule.compared, owner)) and limit < sys.maxsize:
                    path = ast.unparse(rule.container).removeprefix("self")
                    yield Bound(path, held, int(limit), ast.unparse(rule.limit).removeprefix("self."))


def _length(held: Any) -> int:
    """Return the length of a container. Raises StopIteration for any other object."""
    return next(each for each in _CONTAINERS if issubclass(type(held), each)).__len__(held)


def _rules(kind: _Owner) -> Iterator[_Rule]:
    methods = _Methods(kind)
    for name in methods.names_with_length():
        tree = methods.tree(name)
        if tree is not None:
            yield from _rules_of(tree, methods)


class _Methods:
    """The source of a class's methods and properties, or of a module and its functions, using `self`."""

    def __init__(self, kind: _Owner) -> None:
        self._found: dict[str, tuple[_Owner, types.FunctionType, bool]] = {}
        self._trees: dict[str, _Tree | None] = {}
        is_module = type(kind) is types.ModuleType
        program = _program(kind) if is_module else None
        if program is not None:
            self._found[_PROGRAM] = kind, program, False
        bases = () if is_module else reversed(type_attribute(kind, "__mro__"))
        spaces = [(each, type_attribute(each, "__dict__")) for each in bases] or [(kind, kind.__dict__)]
        for base, members in spaces:
            for name, value in members.items():
                function = value.fget if type(value) is property else value
                while type(function) is types.FunctionType and "__wrapped__" in function.__dict__:
                    # A decorator's wrapper calls this function.
                    function = function.__dict__["__wrapped__"]
                if type(function) is not types.FunctionType:
                    continue
                if members is function.__globals__ if is_module else function.__code__.co_argcount:
                    self._found[name] = base, function, type(value) is property

    def names_with_length(self) -> set[str]:
        """Return the methods that use a length or a slice, or call such a method."""
        codes = {name: function.__code__ for name, (_, function, _) in self._found.items()}
        found = {name for name, code in codes.items() if "len" in code.co_names}
        found |= {name for name, code in codes.items() if not _SLICES.isdisjoint(code.co_code[::2])}
        for _ in range(2):
            found |= {name for name, code in codes.items() if not found.isdisjoint(code.co_names)}
        return found

    def tree(self, name: str) -> _Tree | None:
        """Return the source of a method, or `None` if it is missing or currently being read."""
        if name in self._found and name not in self._trees:
            self._trees[name] = None
            owner, function, _ = self._found[name]
            tree = _parsed(function)
            self._trees[name] = None if tree is None else _Inliner(owner, function, tree, self).tree
        return self._trees.get(name)

    def result(self, name: str, is_property: bool) -> ast.expr | None:
        """Return the expression returned by a method without arguments, or by a property."""
        if name not in self._found or self._found[name][2] is not is_property:
            return None
        nodes = ast.walk(self.tree(name) or ast.Pass())
        returned = [each.value for each in nodes if isinstance(each, ast.Return)]
        found = returned[-1] if returned else None
        # Other methods may change the container, so their calls are not replaced.
        return copy.deepcopy(found) if is_property or "len(" in ast.unparse(found or ast.Pass()) else None


def _program(module: types.ModuleType) -> types.FunctionType | None:
    """Return the code of a module as a function. It is never called."""
    file = module.__dict__.get("__file__")
    with suppress(SyntaxError, ValueError, RecursionError):
        if type(file) is str:
            code = compile("".join(linecache.getlines(file)), file, "exec", dont_inherit=True)
            return types.FunctionType(code, module.__dict__)
    return None


def _parsed(function: types.FunctionType) -> _Tree | None:
    code = function.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    with suppress(SyntaxError, ValueError, IndexError, RecursionError):
        is_program = code.co_name == _PROGRAM
        text = "def program(): pass" if is_program else textwrap.dedent("".join(inspect.getblock(lines)))
        [tree] = ast.parse(text).body
        if isinstance(tree, _Tree) and is_program:
            parts = ast.parse("".join(lines)).body
            tree.body = [each for each in parts if not isinstance(each, _Tree | ast.ClassDef)]
        if isinstance(tree, _Tree) and (is_program or tree.name == code.co_name):
            return tree
    return None


class _Inliner(ast.NodeTransformer):
    """Inlines variables that are assigned once, properties and global constants."""

    def __init__(self, owner: _Owner, function: types.FunctionType, tree: _Tree, methods: _Methods) -> None:
        code = function.__code__
        is_module = type(owner) is types.ModuleType
        self._private = "" if is_module else f"_{type_name(owner).lstrip('_')}"
        # At most 500 substitutions: variables that use each other several times would grow exponentially.
        self._globals, self._methods, self._depth, self._left = function.__globals__, methods, 0, 500
        self._self, self._local = "" if is_module else code.co_varnames[0], set(code.co_varnames)
        # The variables and functions of a module are its attributes.
        self._own = self._globals if is_module else {}
        names = (each for each in ast.walk(tree) if isinstance(each, ast.Name))
        times = collections.Counter(each.id for each in names if isinstance(each.ctx, ast.Store))
        arguments = code.co_varnames[: code.co_argcount]
        pairs = ((name, value) for name, value in _assigned(tree) if times[name] == 1)
        # The variables of a program are attributes of its module, like those that functions use.
        is_program = code.co_name == _PROGRAM
        self._once = {} if is_program else {name: value for name, value in pairs if name not in arguments}
        self.tree: _Tree = self.visit(tree)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a variable, or a global number or string."""
        if node.id == self._self:
            return ast.Name("self", ast.Load())
        if isinstance(node.ctx, ast.Load) and node.id in self._once and self._depth < _DEPTH and self._left:
            self._depth, self._left = self._depth + 1, self._left - 1
            found = self.visit(copy.deepcopy(self._once[node.id]))
            self._depth -= 1
            return found
        value = None if node.id in self._local else self._globals.get(node.id)
        if type(value) in (int, float, str):
            return ast.Constant(value)
        is_own = node.id in self._own and node.id not in self._local
        return ast.Attribute(ast.Name("self", ast.Load()), node.id, node.ctx) if is_own else node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        """Replace an assignment expression with its value."""
        return self.visit(node.value)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Replace a property of `self` and a number in a module, and mangle a private name."""
        if isinstance(node.value, ast.Name) and node.value.id not in self._local:
            module = self._globals.get(node.value.id)
            value = module.__dict__.get(node.attr) if type(module) is types.ModuleType else None
            if type(value) in (int, float):
                return ast.Constant(value)
        self.generic_visit(node)
        if node.attr.startswith("__") and not node.attr.endswith("__"):
            node.attr = self._private + node.attr
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        return (self._methods.result(node.attr, is_property=True) if is_own else None) or node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace `len(self)`, `self.is_full()` and `getattr(self, NAME)`."""
        self.generic_visit(node)
        found = None
        match node:
            case ast.Call(ast.Name("len"), [ast.Name("self")]):
                found = self._methods.result("__len__", is_property=False)
            case ast.Call(ast.Attribute(ast.Name("self"), name), []):
                found = self._methods.result(name, is_property=False)
            case ast.Call(ast.Name("getattr"), [base, ast.Constant(str(name)), *_]):
                found = ast.Attribute(base, name, ast.Load())
        return found or node


def _assigned(tree: _Tree) -> Iterator[tuple[str, ast.expr]]:
    """Yield each variable that a method assigns, with its value."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Name(name)], value) | ast.NamedExpr(ast.Name(name), value):
                yield name, value
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)) if len(names) == len(values):
                pairs = zip(names, values, strict=True)
                yield from ((each.id, value) for each, value in pairs if isinstance(each, ast.Name))


def _rules_of(tree: _Tree, methods: _Methods) -> Iterator[_Rule]:
    """Yield the comparisons of a method that decide whether a container changes."""
    statements = [each for each in ast.walk(tree) if isinstance(each, ast.stmt)]
    # A position that is compared with the length represents the length.
    pairs = _comparisons(statements, {})
    lengths = {other.id: container for container, other in pairs if isinstance(other, ast.Name)}
    rings = dict(_rings(statements))
    for statement in statements:
        asked, decided = _parts(statement)
        for container, limit in _comparisons(asked, lengths):
            leaves = any(isinstance(each, _EXITS) for each in _nodes(decided))
            later = [each for each in statements if each.lineno > (statement.end_lineno or 0)]
            reached = later if leaves or isinstance(statement, (ast.While, ast.Assert)) else []
            if _changes(ast.unparse(container), [*decided, *reached], methods):
                limit = rings.get(ast.unparse(limit), limit)
                yield _Rule(container, limit, container)
                changed = _changed([*decided, *later] if leaves else decided)
                if changed.pop(ast.unparse(container), None):
                    yield from (_Rule(other, limit, container) for other in changed.values())


def _rings(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the attributes that advance modulo a number, such as a ring position, with that number."""
    for statement in statements:
        match statement:
            case ast.Assign([ast.Attribute() as position], ast.BinOp(_, ast.Mod(), limit)):
                yield ast.unparse(position), limit


def _parts(statement: ast.stmt) -> tuple[Sequence[ast.AST], Sequence[ast.AST]]:
    """Return the condition of a statement, and the code that depends on it."""
    match statement:
        case ast.If(test, body, others) | ast.While(test, body, others):
            return [test], [*body, *others]
        case ast.For(_, values, body):
            return [values], body
        case ast.Assert(test):
            return [test], []
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Delete():
            return [statement], [statement]
    return [], []


def _nodes(parts: Iterable[ast.AST]) -> Iterator[ast.AST]:
    return (node for part in parts for node in ast.walk(part))


def _comparisons(parts: Iterable[ast.AST], lengths: Mapping[str, ast.expr]) -> Iterator[_Pair]:
    """Yield each container with a compared length, and the other operand. `lengths` are known names."""
    pairs: list[_Pair] = []
    for node in _nodes(parts):
        match node:
            case ast.Compare(left, operators, others) if all(isinstance(each, _ORDERS) for each in operators):
                pairs += pairwise((left, *others))
            case ast.BinOp(left, ast.Sub(), right):
                pairs.append((left, right))
            case ast.Subscript(kept, ast.Slice(ast.UnaryOp(ast.USub(), limit), None)):
                yield kept, limit
            case ast.Subscript(removed, ast.Slice(None, ast.UnaryOp(ast.USub(), limit))):
                yield removed, limit
    for one, other in pairs:
        for length, limit in ((one, other), (other, one)):
            container = _measured(length, lengths)
            if container is not None:
                yield container, limit


def _measured(length: ast.expr, lengths: Mapping[str, ast.expr]) -> ast.expr | None:
    """Return the container of a length expression, even if another term is added to the length."""
    match length:
        case ast.Call(ast.Name("len"), [container]):
            return container
        case ast.Name(name):
            return lengths.get(name)
        case ast.BinOp(left, ast.Add(), right):
            return _measured(left, lengths) or _measured(right, lengths)
    return None


def _changes(container: str, parts: Iterable[ast.AST], methods: _Methods, depth: int = 2) -> bool:
    """Return whether code adds to or removes from a container, directly or through methods of `self`."""
    for node in _nodes(parts):
        match node:
            case ast.Call(ast.Attribute(owner, name)) if name in _CHANGES and (
                ast.unparse(owner) == container or (container, ast.unparse(owner)) == ("self", "super()")
            ):
                return True
            case ast.Call(ast.Name(name) | ast.Attribute(_, name), [first, *_]) if (
                name in _CHANGES_OF_FIRST and ast.unparse(first) == container
            ):
                return True
            case ast.Call(ast.Attribute(ast.Name("self"), name)) if depth:
                tree = methods.tree(name)
                if tree is not None and _changes(container, tree.body, methods, depth - 1):
                    return True
            case ast.Assign(targets) | ast.Delete(targets):
                targets = [part for each in targets for part in getattr(each, "elts", [each])]
                owners = (each.value for each in targets if isinstance(each, ast.Subscript))
                if container in map(ast.unparse, (*targets, *owners)):
                    return True
            case ast.AugAssign(target) if ast.unparse(target) == container:
                return True
    return False


def _changed(parts: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """Return the attributes of `self` that code adds to or removes from, by source text."""
    found: dict[str, ast.expr] = {}
    for node in _nodes(parts):
        match node:
            case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self")) as owner, name)) if name in _CHANGES:
                found[ast.unparse(owner)] = owner
            case ast.Delete([ast.Subscript(ast.Attribute(ast.Name("self")) as owner)]):
                found[ast.unparse(owner)] = owner
    return found


def _value(node: ast.AST, owner: Any) -> Any:
    """Return the value of an expression of `self` for an object, without running any of the object's code.

    Raises:
        LookupError: If the value cannot be determined.
    """
    match node:
        case ast.Constant(value):
            return value
        case ast.Name("self"):
            return owner
        case ast.Attribute(base, name):
            return _attribute(_value(base, owner), name)
        case ast.Subscript(base, ast.Constant(key)) if type(held := _value(base, owner)) in (dict, list):
            return held[key]
        case ast.BinOp(left, operator, right):
            return _ARITHMETIC[type(operator)](_number(left, owner), _number(right, owner))
        case ast.UnaryOp(ast.USub(), operand):
            return -_number(operand, owner)
        case ast.Call(ast.Name(name), arguments):
            return _CALLS[name](*(_number(each, owner) for each in arguments))
    raise LookupError


def _number(node: ast.AST, owner: Any) -> int | float:
    value = _value(node, owner)
    if issubclass(type(value), np.integer):
        return int(value)
    if type(value) in (int, float) and math.isfinite(value):
        return value
    raise LookupError


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute of an object or of its class. Classes as owners are not searched."""
    if not issubclass(type(owner), type):
        value = inspect.getattr_static(owner, name)
        return value.__get__(owner) if type(value) is types.MemberDescriptorType else value
    raise LookupError
