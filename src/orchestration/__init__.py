"""Training runs, from configuration to the last checkpoint, and evaluation.

Names are imported on first use, so commands can check settings before they import torch, and `reverie-doctor`
starts even if Reverie's dependencies are missing.
"""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
