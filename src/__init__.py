"""Reverie: a reference DreamerV3 in PyTorch whose memory provably does not grow."""

import os
from multiprocessing import parent_process

if __name__ != "reverie":  # a second import would be a second set of classes
    raise ImportError(f"Import this package as `reverie`, not as `{__name__}`.")

from .utils.parent import end_with_parent
from .utils.public_names import public_names

__version__ = "0.2.0"

# How long torch's idle threads (GNU OpenMP) spin for more work: some 0.05 ms instead of several. Longer, they
# keep emulators, and other runs, from the cores; acting with 8 of them takes a fifth longer.
# OpenMP reads it when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

end_with_parent()
if parent_process() is None:  # processes of environments import no torch, and may outlive the folder
    from .utils.errors import require_current_folder

    require_current_folder()

# Public names are imported when they are first asked for, because torch takes seconds to import.
__getattr__, __dir__, __all__ = public_names(__name__)
