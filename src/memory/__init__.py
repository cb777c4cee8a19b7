"""Memory settings, leak guard and CUDA snapshots of a run, based on heapwatch."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
