"""Make a short run at import, so that the forked runs of the zoo find modules and plan in memory."""

from pathlib import Path
from tempfile import TemporaryDirectory

from . import zoo

with TemporaryDirectory() as folder:
    zoo.outcome_of(Path(folder) / "run", None, "training.total_timesteps=64")
