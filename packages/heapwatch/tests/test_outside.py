"""Memory outside the Python heap is reported with its amount, trend and kind, and no wrong owner."""

import ctypes
import gc
import mmap
import os
import re
import sys
import warnings
from functools import partial
from multiprocessing.shared_memory import SharedMemory

import pytest
import torch

from .fresh import in_a_fresh_process
from .watching import KB, watched

KEPT: list[SharedMemory] = []
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


class Holder(torch.nn.Module):
    """Keeps tensors with their graphs in a list of C++ (pytorch #177869). Python never sees them."""

    kept: list[torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.kept = []
        self.weight = torch.nn.Parameter(torch.ones(100, 100))

    def forward(self) -> None:
        self.kept.append((torch.ones(250, 100) @ self.weight).tanh())


def held_by_cpp() -> tuple[str, list[str]]:
    warnings.simplefilter("ignore")
    holder = torch.jit.script(Holder())

    def step(_: int) -> None:
        holder()

    watch = watched(step)
    return watch.verdict, [each.text() for each in watch.findings]


def test_tensors_and_graphs_held_by_cpp_are_held_outside_python() -> None:
    verdict, findings = in_a_fresh_process(held_by_cpp)
    assert verdict == "leak" and len(findings) == 1
    lines = findings[0].splitlines()
    what = r"native memory of a library or an extension \(the Python heap grew by 0\.\d\d of [\d.]+ MB\)"
    # Each step keeps the output of tanh.
    assert re.fullmatch(rf"  held outside Python: [\d.]+ MB, \+10\d\.\d kB per step: {what}\.", lines[1])
    assert len(lines) == 2


_MALLOC = ctypes.CDLL(None).malloc
_MALLOC.restype = ctypes.c_void_p


class Block:
    """Has memory of the C library, like an object of an extension."""

    def __init__(self) -> None:
        self.address = _MALLOC(100 * KB)
        ctypes.memset(self.address, 1, 100 * KB)


BLOCKS: list[Block] = []


def held_by_objects() -> list[str]:
    # Garbage of other tests would count as freed memory.
    gc.collect()
    return [each.text() for each in watched(lambda _: BLOCKS.append(Block())).findings]


def test_the_container_of_objects_with_memory_outside_python_is_reported() -> None:
    found = in_a_fresh_process(held_by_objects)[0]
    holder = r"\S*test_outside\.BLOCKS \(list, \d+ Block objects, test_outside\.py:\d+\)"
    effect = r"may hold this memory: \d+ more in \d+ steps"
    assert re.search(rf"held outside Python: .*\n  {holder} {effect}\.$", found), found


def shared_memory(is_held: bool) -> tuple[str, list[str]]:
    map_file = ctypes.CDLL(None).mmap
    map_file.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    map_file.restype = ctypes.c_void_p
    names: list[str] = []

    def step(_: int) -> None:
        block = SharedMemory(create=True, size=200 * KB)
        assert block.buf is not None
        block.buf[:] = bytes(200 * KB)
        if is_held:
            KEPT.append(block)
            return
        # As in a library, no Python object knows this map.
        file = os.open(f"/dev/shm/{block.name}", os.O_RDWR)
        address = map_file(None, 200 * KB, mmap.PROT_READ, mmap.MAP_SHARED | mmap.MAP_POPULATE, file, 0)
        assert address != ctypes.c_void_p(-1).value
        os.close(file)
        block.close()
        names.append(block.name)

    watch = watched(step)
    for each in [*KEPT, *map(SharedMemory, names)]:
        each.close()
        each.unlink()
    return watch.verdict, [each.text() for each in watch.findings]


@linux_only
def test_shared_memory_that_python_holds_is_reported_by_its_owner() -> None:
    verdict, findings = in_a_fresh_process(partial(shared_memory, is_held=True))
    assert verdict == "leak"
    [found] = [each for each in findings if "leak of shared memory" in each]
    assert re.search(
        r"test_outside\.KEPT \(list, \d+ SharedMemory objects, test_outside\.py:\d+\) grows: ", found
    )


@linux_only
def test_shared_memory_that_no_python_object_holds_is_reported_by_name() -> None:
    verdict, findings = in_a_fresh_process(partial(shared_memory, is_held=False))
    assert verdict == "leak"
    [found] = [each for each in findings if "leak of shared memory" in each]
    assert re.search(
        r"held outside Python: [\d.]+ MB, \+20\d\.\d kB per step: blocks that are not closed", found
    )
    assert re.search(r"; /dev/shm/psm_\*: [\d.]+ MB\.$", found)
