"""What a run writes about itself: metrics, images and log lines."""

from ..public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
