"""Run briefly at import, so that the zoo's forked runs find modules and the plan in memory."""

from pathlib import Path
from tempfile import TemporaryDirectory

from . import zoo

with TemporaryDirectory() as folder:
    zoo.outcome_of(Path(folder) / "run", None, "training.total_timesteps=64")
