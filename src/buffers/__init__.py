"""Replay buffer: memory is allocated once, and records are sampled as windows or transitions."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
