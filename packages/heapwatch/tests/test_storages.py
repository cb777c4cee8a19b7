import ctypes
import mmap

import numpy as np
import pytest
import torch
from heapwatch.objects.storages import Storage, logical_bytes, storage_of
from torch._subclasses import FakeTensorMode


def test_a_view_of_a_tensor_has_the_whole_storage_of_its_base() -> None:
    base = torch.zeros(1000, 100)
    assert storage_of(base[3].detach()) == storage_of(base)
    assert storage_of(base) == Storage(("cpu", base.data_ptr()), 400_000)
    assert logical_bytes(base[3]) == 400


def test_a_view_of_an_array_has_the_whole_memory_of_what_owns_it() -> None:
    base = np.zeros((50, 64, 64, 3), np.uint8)
    view = base[7:9, ::2].reshape(2, 32, -1)[0]
    assert storage_of(view) == storage_of(base)
    assert storage_of(base) == Storage(("cpu", base.__array_interface__["data"][0]), 614_400)
    assert logical_bytes(view) == 32 * 64 * 3


def test_copies_have_storages_of_their_own() -> None:
    array, tensor = np.zeros(4), torch.zeros(4)
    keys = {storage_of(x).key for x in (array, array.copy(), tensor, tensor.clone())}  # type: ignore[union-attr]
    assert len(keys) == 4


def test_a_tensor_and_an_array_over_the_same_memory_have_one_key() -> None:
    array, tensor = np.zeros(100), torch.zeros(100)
    assert storage_of(torch.from_numpy(array)) == storage_of(array)
    assert storage_of(tensor.numpy()[10:20]) == storage_of(tensor)
    assert storage_of(torch.from_numpy(array).numpy()) == storage_of(array)


@pytest.mark.parametrize(
    "owner",
    [bytearray(64), bytes(range(64)), (ctypes.c_uint8 * 64)(), mmap.mmap(-1, 64)],
    ids=lambda o: type(o),
)
def test_an_array_over_part_of_a_buffer_keeps_the_whole_buffer(owner: object) -> None:
    whole = np.frombuffer(owner, np.uint8)  # type: ignore[call-overload]
    part = np.frombuffer(owner, np.uint8, count=8, offset=16)  # type: ignore[call-overload]
    through_memoryview = np.asarray(memoryview(owner))[3:5]  # type: ignore[arg-type]
    expected = Storage(("cpu", whole.__array_interface__["data"][0]), 64)
    assert [storage_of(x) for x in (whole, part, through_memoryview)] == [expected] * 3


def test_values_without_memory_have_no_storage() -> None:
    with FakeTensorMode():
        fake = torch.zeros(3)
    nothing = [fake, torch.zeros(3, device="meta"), torch.zeros(0), np.zeros(0), torch.zeros(3).to_sparse()]
    assert [storage_of(x) for x in nothing] == [None] * 5


class _Nosy(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        _Nosy.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})

    def untyped_storage(self):  # type: ignore[no-untyped-def]
        _Nosy.calls += 1
        return super().untyped_storage()


class _NosyArray(np.ndarray):
    calls = 0

    @property
    def base(self):  # type: ignore[no-untyped-def]
        _NosyArray.calls += 1

    @property
    def nbytes(self):  # type: ignore[no-untyped-def]
        _NosyArray.calls += 1


def test_no_code_of_a_subclass_runs() -> None:
    tensor, array = torch.zeros(8), np.zeros(8)
    nosy, nosy_array = tensor.as_subclass(_Nosy), array.view(_NosyArray)
    _Nosy.calls = _NosyArray.calls = 0
    assert storage_of(nosy) == storage_of(tensor) and logical_bytes(nosy) == 32
    assert storage_of(nosy_array) == storage_of(array) and logical_bytes(nosy_array) == 64
    assert (_Nosy.calls, _NosyArray.calls) == (0, 0)
