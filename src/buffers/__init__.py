"""Replay buffer: allocates its memory once and samples records as windows or transitions."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
