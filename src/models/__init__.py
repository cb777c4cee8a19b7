"""The networks and the mathematics of DreamerV3: no I/O, no loop."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
