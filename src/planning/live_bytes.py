"""Exact bytes of the tensors that live, and their peak: every storage is counted from its birth to its death.

It works for real tensors and for those of the `meta` device, which have shapes and no memory: what an update
needs can then be counted on a machine that could not run it.
"""

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operators return inside the `with` block, until they die.

    A storage is counted once, however many tensors show it, under the label that was set at its birth. One
    that was there before the block is counted from the first operator that returns it, or from `count`; it is
    followed to its death, inside or outside of the block. No storage is kept alive. What a kernel allocates
    for itself and frees before it returns is not seen.

    Cost: about 3 us an operator.

    Args:
        granularity: Sizes are rounded up to a multiple of it, as allocators do (CUDA: 512 bytes).

    >>> with LiveBytes() as bytes_:
    ...     a = torch.zeros(1000)
    ...     b = a + a.exp()
    >>> bytes_.live, bytes_.peak
    (8000, 12000)
    """

    def __init__(self, granularity: int = 1) -> None:
        super().__init__()
        self.live = 0
        """Bytes that live now."""
        self.peak = 0
        """Most bytes that lived at once since the beginning or `reset_peak`."""
        self.label = ""
        """What storages born from now on are counted as."""
        self.live_by_label: dict[str, int] = {}
        self.peak_by_label: dict[str, int] = {}
        self.operators = 0
        """Operators run inside the block."""
        self._granularity = granularity
        self._storages: dict[int, tuple[weakref.ref, int, str]] = {}  # a reference, bytes, label

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler, 40 MB, only to keep it away from the method below.
        return False

    def count(self, tensors: Iterable[Tensor], label: str | None = None) -> None:
        """Count the storages of tensors that were made before, or give those counted another label."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            watched = self._storages.get(storage._cdata)
            if watched is None:
                self._watch(storage, self.label if label is None else label)
            elif label is not None:
                reference, nbytes, before = watched
                self._storages[storage._cdata] = reference, nbytes, label
                self._add(before, -nbytes)
                self._add(label, nbytes)

    def reset_peak(self) -> None:
        """Let the peak begin anew at what lives now."""
        self.peak, self.peak_by_label = self.live, dict(self.live_by_label)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and count what it returns."""
        result = func(*args, **(kwargs or {}))
        self.operators += func.namespace != "profiler"  # labels for a profiler leave no node in a graph
        parts = [result] if isinstance(result, Tensor) else tree_leaves(result)
        self.count(part for part in parts if isinstance(part, Tensor))
        return result

    def _watch(self, storage: torch.UntypedStorage, label: str) -> None:
        nbytes = -(-storage.nbytes() // self._granularity) * self._granularity
        reference = weakref.ref(storage, partial(self._forget, storage._cdata))
        self._storages[storage._cdata] = reference, nbytes, label
        self._add(label, nbytes)

    def _add(self, label: str, nbytes: int) -> None:
        self.live += nbytes
        self.live_by_label[label] = self.live_by_label.get(label, 0) + nbytes
        if self.live > self.peak:
            self.peak, self.peak_by_label = self.live, dict(self.live_by_label)

    def _forget(self, address: int, _: object) -> None:
        _, nbytes, label = self._storages.pop(address)
        self._add(label, -nbytes)
