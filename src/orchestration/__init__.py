"""A run's life: from its settings to its last checkpoint, and the evaluation of what it learned.

Its names are imported on first use, so that commands check their settings before torch is imported, and
`reverie-doctor` starts where other packages of Reverie are missing.
"""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
