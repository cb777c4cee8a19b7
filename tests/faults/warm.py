"""A short run at import, in the process that forks the runs of the zoo: they find all loaded and planned."""

from pathlib import Path
from tempfile import TemporaryDirectory

from . import zoo

with TemporaryDirectory() as folder:
    zoo.outcome_of(Path(folder) / "run", None, "training.total_timesteps=64")
