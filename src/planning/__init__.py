"""What a run needs of every resource, known before step 0 and before anything is allocated."""

from ..utils.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__)
