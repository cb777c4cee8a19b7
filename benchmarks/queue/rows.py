"""The list of runs that the queue trains."""

from dataclasses import dataclass, field
from pathlib import Path

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from reverie.utils.errors import UserError, first_line


@dataclass(kw_only=True, slots=True)
class Evaluation:
    """How each run is evaluated after training, with sampled actions."""

    episodes: int = MISSING
    """Number of new episodes."""

    max_frames: int | None = MISSING
    """Number of frames after which an episode is cut off. null keeps the length of training episodes."""


@dataclass(kw_only=True, slots=True)
class Row:
    """One run."""

    name: str = MISSING
    """Name of its folders."""

    experiment: str = MISSING
    overrides: list[str] = field(default_factory=list)
    seed: int = MISSING

    @property
    def settings(self) -> list[str]:
        """The arguments of `reverie-train`, without the run folder."""
        return [f"experiment={self.experiment}", *self.overrides, f"seed={self.seed}", "device=cpu"]


@dataclass(kw_only=True, slots=True)
class RunList:
    """Runs, in the order in which they are trained."""

    evaluation: Evaluation = MISSING
    rows: list[Row] = MISSING


def read_rows(path: Path) -> RunList:
    """Return the list that a YAML file contains.

    Raises:
        UserError: If the file cannot be read, does not fit `RunList`, has no row, or uses a name twice.
    """
    try:
        content = yaml.safe_load(path.read_text())
        found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunList), content))
    except OSError as error:
        raise UserError(f"rows={path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        message = f"rows={path} is not a list of runs: {first_line(error)}."
        raise UserError(f"{message} benchmarks/atari100k.yaml shows the form.") from error
    assert isinstance(found, RunList)
    if not found.rows:
        raise UserError(f"rows={path} has no row. benchmarks/atari100k.yaml shows the form.")
    names = [row.name for row in found.rows]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"rows={path} has {name} {names.count(name)} times. Names must be unique.")
        if name != Path(name).name or name.startswith("."):
            raise UserError(f"rows={path}: {name!r} cannot name a folder. Use letters, digits and _.")
    return found
