"""Algorithms: how to act and how to learn."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
