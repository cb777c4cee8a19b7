"""Save nested state (tensors, arrays and plain values) as JSON and safetensors, without executable code."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import durable_io
from .durable_io import SAFETENSORS_DTYPES, FileRecord

_PLAIN = (type(None), bool, int, float, str)
# Safetensors reserves this name.
_RESERVED = "__metadata__"


def save_state(folder: Path, name: str, state: Any) -> dict[str, FileRecord]:
    """Write nested state to `<name>.json` and `<name>.safetensors`, and return their records.

    State consists of dicts, lists and tuples of tensors (on any device), NumPy arrays and scalars, numbers,
    strings, True, False and `None`. Keys may be numbers. Tuples are loaded as lists, and subclasses of dict
    as dict.

    Raises:
        TypeError: If there is any other value. The message gives its path. No file is written in this case.
    """
    tensors: dict[str, Tensor] = {}
    plain = _split(state, (), tensors)
    return {
        f"{name}.json": durable_io.write_json(folder / f"{name}.json", plain),
        f"{name}.safetensors": durable_io.write_tensors(folder / f"{name}.safetensors", tensors),
    }


def load_state(folder: Path, name: str, device: torch.device | str = "cpu") -> Any:
    """Return the state that `save_state` wrote, bit for bit, with tensors on `device`.

    Raises:
        UserError: If a file is missing or damaged.
    """
    tensors = durable_io.read_tensors(folder / f"{name}.safetensors")
    path = folder / f"{name}.json"
    plain = durable_io.read_json(path)
    with durable_io.reading(path):
        state = _join(plain, tensors, torch.device(device))
    if tensors:
        reason = f"{path.name} does not list tensor {min(tensors)!r}"
        raise durable_io.corrupt_file_error(folder / f"{name}.safetensors", reason)
    return state


def check_structure(state: Any, own: Any, name: str = "") -> None:
    """Raise `ValueError` with the first difference if `state` cannot replace `own`.

    Dicts must have the same keys, lists the same length, tensors and arrays the same dtype and shape, and
    other values the same type. Integers are counts in [0, 2**63). `name` is the path within a larger state.
    """
    if isinstance(own, dict) and isinstance(state, dict):
        for key in sorted(state.keys() ^ own.keys(), key=str):
            raise ValueError(f"{name}{key} is {'missing' if key in own else 'unknown'}")
        for key in own:
            check_structure(state[key], own[key], f"{name}{key}/")
    elif isinstance(own, list | tuple) and isinstance(state, list | tuple) and len(own) == len(state):
        for index, (theirs, mine) in enumerate(zip(state, own, strict=True)):
            check_structure(theirs, mine, f"{name}{index}/")
    elif _form(state) != _form(own):
        raise ValueError(f"{name.rstrip('/')} is {_form(state)} instead of {_form(own)}")


def check_finite(state: Any, name: str = "") -> None:
    """Raise `ValueError` with the path of the first tensor or array that contains a NaN or an infinity."""
    if isinstance(state, dict | list | tuple):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            check_finite(value, f"{name}{key}/")
    elif isinstance(state, Tensor | np.ndarray) and not torch.as_tensor(state).isfinite().all():
        raise ValueError(f"{name.rstrip('/')} has values that are not finite")


def _form(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if type(value) is int and not 0 <= value < 2**63:
        return f"the number {value:.6g}" if abs(value) < 2**127 else "a number with more than 38 digits"
    return f"of type {type(value).__name__}"


def _split(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """Return `value` in JSON types. Tensors and arrays move to `tensors`, and markers replace them."""
    if isinstance(value, Tensor):
        return {"$tensor": _put(value, path, tensors)}
    if isinstance(value, np.ndarray | np.generic):
        marker = "$array" if isinstance(value, np.ndarray) else "$scalar"
        # Memory that torch accepts is shared instead of copied.
        try:
            tensor = torch.from_numpy(np.require(value, requirements=["C", "W"]))
        except (TypeError, ValueError) as error:
            raise _refusal(value.dtype, path) from error
        return {marker: _put(tensor, path, tensors)}
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        return [_split(item, (*path, str(i)), tensors) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        raise _refusal(value, path)
    items = [(key, _split(item, (*path, str(key)), tensors)) for key, item in value.items()]
    if all(type(key) is str and not key.startswith("$") for key in value):
        return dict(items)
    for key in value:
        if type(key) not in _PLAIN:
            raise _refusal(key, (*path, str(key)))
    # A JSON object would turn the key 1 into the string "1".
    return {"$items": items}


def _put(tensor: Tensor, path: tuple[str, ...], tensors: dict[str, Tensor]) -> str:
    if tensor.dtype not in SAFETENSORS_DTYPES:
        raise _refusal(tensor.dtype, path)
    name = "/".join(path)
    # Names may collide, because keys may contain slashes.
    while name in tensors or name == _RESERVED:
        name += "'"
    tensors[name] = tensor
    return name


def _refusal(what: Any, path: tuple[str, ...]) -> TypeError:
    name = f"of dtype {what}" if isinstance(what, np.dtype | torch.dtype) else f"a {type(what).__name__}"
    return TypeError(f"`{'/'.join(path)}` is {name}, which checkpoints do not support")


def _join(plain: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """Return the original state with copies of the tensors, and remove these from `tensors`.

    Each tensor's name occurs once.
    """
    if isinstance(plain, list):
        return [_join(item, tensors, device) for item in plain]
    match plain:
        case {"$tensor": name}:
            return tensors.pop(name).to(device, copy=True)
        case {"$array": name}:
            return tensors.pop(name).clone().numpy()
        case {"$scalar": name}:
            return tensors.pop(name).numpy()[()]
        case {"$items": items}:
            return {key: _join(item, tensors, device) for key, item in items}
        case dict():
            return {key: _join(item, tensors, device) for key, item in plain.items()}
    return plain
