"""Plan a run's memory and disk usage before anything is allocated."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
