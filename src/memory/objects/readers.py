"""How to read what objects of the language hold: containers, functions, frames, tensors, instances.

Only descriptors and iterators of C are called: no property, no `__getattr__`, and no `__iter__`, `__len__`,
`__eq__`, `__hash__` or `__repr__` of a foreign type. Each reader yields (step of the path, value, weight).
"""

import collections
import functools
import gc
import types
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from .frames import frame_locals

Child = tuple[str, Any, float]
"""Step of the path (`.deter`, `[3]`, `['key']`), what is there, and for how many such children it stands."""

SCAN = 65_536
"""Elements of a container that are looked at; evenly spaced when there are more."""

SAMPLE = 1_024
"""Objects of a container that are walked; evenly spaced when there are more."""

_PRIMITIVES = (
    *(int, float, complex, bool, str, bytes, bytearray, range, slice, type(None), type(NotImplemented)),
    *(type(Ellipsis), torch.dtype, torch.device, torch.Size),
)
PRIMITIVE_IDS = frozenset(map(id, _PRIMITIVES))
"""Ids of the types that hold nothing. Ids, because a metaclass may define how types are hashed."""

_MODULE_REGISTRIES = ("_parameters", "_buffers", "_modules")
_LONGEST_KEY_TEXT = 80
_TENSOR: Any = torch._C.TensorBase


def type_attribute(kind: type, name: str) -> Any:
    """Return an attribute of a type as C has it, whatever its metaclass says."""
    return type.__dict__[name].__get__(kind)


def type_name(kind: type) -> str:
    """Return the name of a type as a plain str."""
    return "".join([type_attribute(kind, "__name__")])


def spaced(pairs: Iterable[tuple[Any, Any]], length: int) -> Iterator[tuple[Any, Any, float]]:
    """Yield (key, value, weight) of what is worth walking in a container of `length` pairs.

    Looks at no more than `SCAN` pairs and keeps no more than `SAMPLE` objects, the last always among them;
    the weight is the number of objects that each stands for.
    """
    stride = max(1, -(-length // SCAN))
    # A list at once: the container may be changed by another thread between two steps of a loop.
    looked_at = list(islice(pairs, (length - 1) % stride if length else 0, None, stride))
    weight = length / len(looked_at) if stride > 1 else 1.0
    kept = [pair for pair in looked_at if id(type(pair[1])) not in PRIMITIVE_IDS]
    if len(kept) > SAMPLE:
        weight *= len(kept) / SAMPLE
        last = len(kept) - 1
        kept = [kept[last * i // (SAMPLE - 1)] for i in range(SAMPLE)]
    for key, value in kept:
        yield key, value, weight


def items(o: Any) -> Iterator[Child]:
    """Yield values of a dict, and those of its keys that are objects."""
    length = dict.__len__(o)
    pairs = zip(enumerate(dict.keys(o)), dict.values(o), strict=True)
    for (position, key), value, weight in spaced(pairs, length):
        yield f"[{_key_text(key, position)}]", value, weight
    for position, key, weight in spaced(enumerate(dict.keys(o)), length):
        if not _is_plain(key):
            yield f".<key {position}>", key, weight


def sequence(kind: type, o: Any) -> Iterator[Child]:
    """Yield the elements of a list or a tuple, of which `kind` says."""
    length = kind.__len__(o)  # type: ignore[attr-defined]
    stride = max(1, -(-length // SCAN))
    start = (length - 1) % stride if length else 0
    # A slice: stepping over a million elements costs more than all the rest.
    part = kind.__getitem__(o, slice(start, None, stride))  # type: ignore[attr-defined]
    scale = length / len(part) if part else 1.0
    for i, value, weight in spaced(enumerate(part), len(part)):
        yield f"[{start + i * stride}]", value, weight * scale


def queue(o: Any) -> Iterator[Child]:
    """Yield the elements of a deque."""
    for i, value, weight in spaced(enumerate(collections.deque.__iter__(o)), collections.deque.__len__(o)):
        yield f"[{i}]", value, weight


def members(kind: Any, o: Any) -> Iterator[Child]:
    """Yield the members of a set or a frozenset, of which `kind` says."""
    for i, value, weight in spaced(enumerate(kind.__iter__(o)), kind.__len__(o)):
        yield f".<member {i}>", value, weight


def object_array(o: Any) -> Iterator[Child]:
    """Yield the elements of an array of objects; numbers hold nothing."""
    if np.ndarray.dtype.__get__(o).kind == "O":
        for i, value, weight in spaced(enumerate(np.ndarray.flat.__get__(o)), np.ndarray.size.__get__(o)):
            yield f"[{i}]", value, weight


def tensor(dictionary: Any, o: Any) -> Iterator[Child]:
    """Yield gradient and hooks of a tensor, and what somebody has attached to it."""
    if has_own_gradient(o):  # the gradient of any other warns
        gradient = _TENSOR.grad.__get__(o)
        if gradient is not None:
            yield ".grad", gradient, 1.0
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(_TENSOR, name).__get__(o)
        if hooks is not None:
            yield f".{name}", hooks, 1.0
    if any(type(held) is dict for held in gc.get_referents(o)):  # else it has none, and asking would make one
        yield from _own_attributes(dictionary, o)


def has_own_gradient(o: Any) -> bool:
    """Return whether a tensor is a leaf, or retains its gradient."""
    try:
        return _TENSOR.is_leaf.__get__(o) or _TENSOR.retains_grad.__get__(o)
    except RuntimeError:  # a view whose base was changed in place (see `grad_fn`)
        return False


def function(o: Any) -> Iterator[Child]:
    """Yield closure and defaults of a function; its globals belong to a module."""
    for name, cell_ in zip(o.__code__.co_freevars, o.__closure__ or (), strict=True):
        yield from ((f".<closure {name}>", value, 1.0) for _, value, _ in cell(cell_))
    for i, value in enumerate(o.__defaults__ or ()):
        yield f".<default {i}>", value, 1.0
    for name, value in (o.__kwdefaults__ or {}).items():
        yield f".<default {name}>", value, 1.0


def cell(o: Any) -> Iterator[Child]:
    """Yield what a closure's variable holds."""
    try:
        yield ".<cell>", o.cell_contents, 1.0
    except ValueError:  # empty
        return


def fields(owner: type, names: tuple[str, ...], o: Any) -> Iterator[Child]:
    """Yield members that the C type `owner` defines."""
    for name in names:
        yield f".{name}", type_attribute(owner, "__dict__")[name].__get__(o), 1.0


def suspended(frame_name: str, o: Any) -> Iterator[Child]:
    """Yield the local variables of a generator or a coroutine that has not ended."""
    frame = getattr(o, frame_name)
    if frame is not None:
        yield from ((f".<local {name}>", value, 1.0) for name, value in frame_locals(frame))


def frame(o: Any) -> Iterator[Child]:
    """Yield the local variables of a frame."""
    yield from ((f".<frame {o.f_code.co_name}:{name}>", value, 1.0) for name, value in frame_locals(o))


def traceback(o: Any) -> Iterator[Child]:
    """Yield the local variables of all frames of a traceback."""
    while o is not None:
        name = o.tb_frame.f_code.co_name
        yield from ((f".<traceback {name}:{k}>", value, 1.0) for k, value in frame_locals(o.tb_frame))
        o = o.tb_next


def exception(o: Any) -> Iterator[Child]:
    """Yield what an exception says and the variables of the frames it came through."""
    yield from fields(BaseException, ("args", "__cause__", "__context__"), o)
    yield from traceback(type_attribute(BaseException, "__dict__")["__traceback__"].__get__(o))


def slot_values(slots: list[tuple[str, Any]], o: Any) -> Iterator[Child]:
    """Yield the values of `__slots__`, given by name and descriptor."""
    for name, descriptor in slots:
        try:
            yield f".{name}", descriptor.__get__(o), 1.0
        except AttributeError:  # never set
            continue


def attributes(dictionary: Any, o: Any) -> Iterator[Child]:
    """Yield the attributes of an instance, its `__dict__` read by the descriptor `dictionary`.

    Reading `__dict__` makes a dictionary for each object that has none yet, and that stays: an instrument
    must not leave such a trace on a million records of numbers, so it asks the garbage collector first.
    """
    if any(id(type(held)) not in PRIMITIVE_IDS for held in gc.get_referents(o) if held is not type(o)):
        yield from _own_attributes(dictionary, o)


def module_attributes(dictionary: Any, o: Any) -> Iterator[Child]:
    """Yield parameters, buffers and submodules under the names they are used by, then everything else."""
    others = []
    for step, value, weight in _own_attributes(dictionary, o):
        if step[1:] in _MODULE_REGISTRIES and issubclass(type(value), dict):
            yield from ((f".{k}", v, 1.0) for k, v in list(dict.items(value)) if type(k) is str)
        elif type(value) is set or type(value) is collections.OrderedDict:
            if value:  # most registries of hooks are empty
                others.append((step, value, weight))
        else:
            others.append((step, value, weight))
    yield from others


def referents(o: Any) -> Iterator[Child]:
    """Yield what the garbage collector sees in an object of C, such as a queue or an iterator."""
    held = gc.get_referents(o)
    for i, value, weight in spaced(enumerate(held), len(held)):
        if not issubclass(type(value), (type, types.ModuleType)):
            yield f".<{type_name(type(o))} {i}>", value, weight


def partial(o: Any) -> Iterator[Child]:
    """Yield function and arguments of a `functools.partial`."""
    yield from fields(functools.partial, ("func", "args", "keywords"), o)


def _own_attributes(dictionary: Any, o: Any) -> Iterator[Child]:
    own = dictionary.__get__(o)
    if not issubclass(type(own), dict):  # a type of C may have anything there, or nothing yet
        return
    for name, value, weight in spaced(dict.items(own), dict.__len__(own)):
        yield f".{name}" if type(name) is str else f".<{type_name(type(name))}>", value, weight


def _is_plain(key: object) -> bool:
    """Return whether a key is a number, a text, or a tuple of such."""
    return id(type(key)) in PRIMITIVE_IDS or (type(key) is tuple and all(map(_is_plain, key)))


def _key_text(key: Any, position: int) -> str:
    """Return a key as it is written; type and position of one whose `repr` is not ours to call."""
    if not _is_plain(key) or (type(key) is int and key.bit_length() > 128):
        return f"<{type_name(type(key))} {position}>"
    text = repr(key)
    return text if len(text) <= _LONGEST_KEY_TEXT else f"{text[:_LONGEST_KEY_TEXT]}..."
