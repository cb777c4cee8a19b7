"""Reverie: a DreamerV3 training framework in PyTorch with memory-safe components."""

import os
from multiprocessing import parent_process

# Importing this package under another name would create duplicate classes.
if __name__ != "reverie":
    raise ImportError(f"Import this package as `reverie`, not as `{__name__}`.")

from .utils.parent import end_with_parent
from .utils.public_names import public_names

__version__ = "0.2.0"

# Let torch's idle threads (GNU OpenMP) spin for only about 0.05 ms instead of several ms. By default they
# block emulators and other runs from the cores, and acting with 8 threads is a fifth slower. OpenMP reads the
# variable when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

end_with_parent()
# Environment processes do not import torch, and may outlive the current folder.
if parent_process() is None:
    from .utils.errors import require_current_folder

    require_current_folder()

# Public names are imported on first use, because importing torch costs seconds.
__getattr__, __dir__, __all__ = public_names(__name__)
