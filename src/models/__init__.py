"""Networks and mathematics of DreamerV3, without I/O or training loops."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
