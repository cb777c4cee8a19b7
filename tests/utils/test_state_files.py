"""A state is restored bit for bit. Its files can neither run code nor lose a bit unnoticed."""

import os
import pickle
import resource
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from reverie.utils.durable_io import (
    SAFETENSORS_DTYPES,
    Damaged,
    FileRecord,
    verify_file,
    write_file,
    write_tensors,
)
from reverie.utils.state_files import load_state, save_state

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int64]


def same(a: Any, b: Any) -> bool:
    """Return whether two nested states are equal, including types, dtypes, shapes and bits."""
    if isinstance(a, dict):
        return type(b) is dict and [*a] == [*b] and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(b) is list and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return type(b) is torch.Tensor and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    return type(a) is type(b) and (a == b or (a != a and b != b))


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).tolist()


def test_a_nest_comes_back_bit_for_bit(tmp_path: Path) -> None:
    floats = torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-40, 1.5])
    state = {
        "tensors": [floats.to(dtype) for dtype in DTYPES],
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}, 10: {}, 2: {}}, "groups": ({"lr": 1e-3},)},
        "keys": {1: torch.ones(1), "1": torch.zeros(1), None: 2, False: 3, 2.5: 4},
        "a": {"b": torch.ones(1)},
        "a/b": torch.zeros(1),
        "$tensor": "a word",
        "__metadata__": torch.ones(2),
        "empty": [torch.empty(0, 3), {}, [], np.empty((2, 0), np.int8)],
        "strided": [torch.arange(6).view(2, 3).t(), np.arange(6).reshape(2, 3).T, np.arange(9)[::-2]],
        "numpy": [np.array(7, np.uint16), np.float32(0.1), np.bool_(True), np.arange(3, dtype=np.uint64)],
        "generators": [np.random.default_rng(1).bit_generator.state, np.random.RandomState(1).get_state()],
        "plain": [None, True, 0, 2**127, 0.1, -0.0, float("nan"), "\N{SNOWMAN}\n"],
        "subclass": OrderedDict(weight=torch.nn.Parameter(torch.randn(2, 2))),
    }
    files = save_state(tmp_path, "state", state)
    for name, record in files.items():
        verify_file(tmp_path / name, record)
    loaded = load_state(tmp_path, "state")
    state["subclass"] = {"weight": state["subclass"]["weight"].detach()}
    assert same(state, loaded)


def test_loaded_tensors_are_not_views_of_the_file(tmp_path: Path) -> None:
    save_state(tmp_path, "state", {"tensor": torch.ones(1000), "array": np.ones(1000)})
    loaded = load_state(tmp_path, "state")
    (tmp_path / "state.safetensors").write_bytes(bytes(20_000))
    assert loaded["tensor"].sum() == loaded["array"].sum() == 1000
    loaded["tensor"] += 1
    loaded["array"] += 1


def test_the_library_of_the_format_reads_the_file_and_finds_it_aligned(tmp_path: Path) -> None:
    tensors = {"flag": torch.ones(3, dtype=torch.bool), "number": torch.tensor(2.5, dtype=torch.float64)}
    write_tensors(tmp_path / "file", tensors | {"half": torch.ones(1).half()})
    loaded = load_file(tmp_path / "file")
    assert [*loaded] == ["number", "half", "flag"]
    assert all(same(tensors[name], loaded[name]) for name in tensors)
    assert int.from_bytes((tmp_path / "file").read_bytes()[:8], "little") % 8 == 0


def test_the_library_of_the_format_knows_the_name_of_every_dtype(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.ones(3).to(dtype) for dtype in SAFETENSORS_DTYPES}
    write_tensors(tmp_path / "file", tensors)
    loaded = load_file(tmp_path / "file")
    assert loaded.keys() == tensors.keys() and len(loaded) == 13
    assert all(same(tensors[name], loaded[name]) for name in tensors)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "`a/0` is a set,"),
        (np.array(["word"]), "`a/0` is of dtype <U4,"),
        (np.array([1], ">i4"), "`a/0` is of dtype >i4,"),
        (torch.ones(1, dtype=torch.complex64), "`a/0` is of dtype torch.complex64,"),
        (Path("x"), "`a/0` is a PosixPath,"),
        ({("a", 1): 1}, r"`a/0/\('a', 1\)` is a tuple,"),
    ],
)
def test_what_cannot_be_written_is_named_and_nothing_is_written(
    tmp_path: Path, value: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=f"^{message} which checkpoints do not support"):
        save_state(tmp_path, "state", {"a": [value]})
    assert list(tmp_path.iterdir()) == []


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_a_pickle_in_the_place_of_a_file_is_refused_unread(tmp_path: Path, name: str) -> None:
    save_state(tmp_path, "state", {"tensor": torch.ones(1)})
    (tmp_path / name).write_bytes(pickle.dumps(Attack(tmp_path / "attacked")))
    with pytest.raises((ValueError, SafetensorError)):
        load_state(tmp_path, "state")
    assert not (tmp_path / "attacked").exists()


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    write_file(tmp_path / "file", [b"first"])
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", [b"second"])
    assert (tmp_path / "file").read_bytes() == b"first"


def test_a_file_that_cannot_be_written_whole_is_an_error(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_tensors(tmp_path / "file", {"tensor": torch.ones(10**6)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_every_kind_of_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    record = write_file(path, [b"abc", memoryview(b"def")])
    assert record == FileRecord(6, "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721")
    verify_file(path, record)

    def refused(fault: str) -> None:
        with pytest.raises(Damaged, match=f"^{path} {fault}$"):
            verify_file(path, record)

    path.write_bytes(b"abcdeg")
    refused("is corrupt: its checksum does not match")
    path.write_bytes(b"abcde")
    refused("has 5 bytes instead of 6")
    path.unlink()
    refused("is missing")
    path.mkdir()
    refused("cannot be read: it is a folder, not a regular file")
