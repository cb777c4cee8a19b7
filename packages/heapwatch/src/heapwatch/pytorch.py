"""PyTorch's classes, once the program has imported PyTorch.

heapwatch does not import PyTorch, because the import lasts seconds and many programs do not use PyTorch.
"""

import sys
from typing import Any


class _Absent:
    """Represents a class of PyTorch before its import. It has no instances."""


class PyTorch:
    """The module and its classes. Call `refresh` before each use, because the program may import it late."""

    module: Any = None
    Tensor: Any = _Absent
    Module: Any = _Absent
    containers: tuple[type, ...] = ()
    """The modules that store their parts by key or index."""
    plain: tuple[type, ...] = ()
    """Types of objects without references."""

    def refresh(self) -> Any | None:
        """Return the module `torch`, or `None` before its import is complete."""
        torch = sys.modules.get("torch")
        is_importing = getattr(getattr(torch, "__spec__", None), "_initializing", False)
        # A program may replace PyTorch by a stub or a mock.
        is_real = "torch.optim.optimizer" in sys.modules and isinstance(getattr(torch, "Tensor", None), type)
        if self.module is None and torch is not None and is_real and not is_importing:
            nn = torch.nn
            self.containers = (nn.ModuleDict, nn.ModuleList, nn.ParameterDict, nn.ParameterList)
            self.plain = (torch.dtype, torch.device, torch.Size)
            self.module, self.Tensor, self.Module = torch, torch.Tensor, nn.Module
        return self.module


TORCH = PyTorch()
