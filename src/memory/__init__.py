"""Memory counters and leak checks, from heapwatch; the settings and the guard of a run."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
