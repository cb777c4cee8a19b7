"""Plan the memory and disk usage of a run before any allocation."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
