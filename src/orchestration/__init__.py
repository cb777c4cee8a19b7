"""Training runs, from their configuration to the last checkpoint, and evaluation.

Names are imported on first use. Commands can therefore check settings before importing torch, and
`reverie-doctor` can start without Reverie's dependencies.
"""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
