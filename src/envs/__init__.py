"""Environments from any suite as streams of records, with an explicit seed for each episode."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
