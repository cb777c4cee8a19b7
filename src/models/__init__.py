"""Networks and mathematics of DreamerV3, free of I/O and training loops."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
