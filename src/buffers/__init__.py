"""Replay: records in memory that is allocated once, sampled as windows or transitions."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
