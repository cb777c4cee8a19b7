"""Write the metrics, images and log lines of a run."""

from ..public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
