"""Measure the claims of the incident reports with a real run: `python -m benchmarks.incident`."""

import gc
import json
import shlex
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.incident.acting import ActingRow, acting_rows
from benchmarks.incident.holding import KeptArray, StoredLoss, held_by, stored_losses_of_agents
from reverie.commands.options import own_settings
from reverie.config.compose import compose_jobs
from reverie.config.dreamer import DreamerTrainConfig
from reverie.config.population import PopulationTrainConfig
from reverie.config.resolve import typed
from reverie.config.schema import TrainConfig, WorkflowName
from reverie.orchestration.dreamer.recipe import DreamerRecipe
from reverie.orchestration.recipes import recipe_of
from reverie.planning import check_run
from reverie.planning.recipe import environment_spec
from reverie.testing.certificate import versions
from reverie.utils.errors import UserError, exit_on_user_error, require_range
from reverie.utils.units import count_text

_PREFIX = "incident."
_USAGE = """\
Measure the claims of the incident reports: python -m benchmarks.incident [experiment=<name>] [key=value ...]

"""
REENACTMENT_JSON = "reenactment.json"
_LEAST_STEPS = 10
# Width in characters of a table that is not printed on a terminal.
_WIDTH = 150


@dataclass(kw_only=True, slots=True)
class IncidentConfig:
    """Settings of `python -m benchmarks.incident`, typed as `incident.<name>=<value>`."""

    steps: int = 300
    """Environment steps per combination of guards."""

    out: str | None = None
    """Folder for `reenactment.json`, or null for no file."""

    def __post_init__(self) -> None:
        require_range("incident", self, "steps", ge=_LEAST_STEPS)


@dataclass(frozen=True, slots=True)
class Reenactment:
    """The tables of one reenactment."""

    command: str
    config: TrainConfig
    acting: list[ActingRow]
    losses: list[StoredLoss]
    arrays: list[KeptArray]

    def show(self, console: Console) -> None:
        """Print the tables."""
        if self.config.workflow is WorkflowName.dreamer:
            console.print(self._acting_table())
        console.print(self._losses_table())
        if self.config.workflow is WorkflowName.dreamer:
            console.print(self._arrays_table())

    def save(self, folder: Path) -> None:
        """Write `reenactment.json`.

        Raises:
            UserError: If the folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / REENACTMENT_JSON).write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        except OSError as error:
            raise UserError(f"incident.out={folder} cannot be written: {error.strerror}.") from error

    def as_dict(self) -> dict[str, Any]:
        """Return all tables as JSON values."""
        return {
            "command": self.command,
            "versions": versions(self.config.device.value),
            "num_envs": self.config.env.num_envs,
            "batch_size": self.config.training.batch_size,
            "sequence_length": getattr(
                self.config.training,
                "sequence_length",
                None,
                # A population does not have an acting table.
            ),
            "acting": [row.as_dict() for row in self.acting],
            "stored_losses": [asdict(row) for row in self.losses],
            "kept_arrays": [asdict(row) for row in self.arrays],
        }

    def _acting_table(self) -> Table:
        steps, num_envs = self.acting[0].readings[-1].steps, self.acting[0].num_envs
        table = _table(
            f"Acting for {count_text(steps, 'step')}, {num_envs} at a time: what stays",
            ["no_grad", "detached"],
            ["autograd nodes per step", "bytes per agent step", "given back by forgetting rssm._state"],
        )
        table.add_column("rssm._state carries a graph")
        for row in self.acting:
            table.add_row(
                "on" if row.no_grad else "off",
                row.detached.value,
                f"{row.nodes_per_step:,.2f}",
                f"{row.bytes_per_agent_step:,.0f}",
                f"{row.given_back_bytes:,}",
                "yes" if row.state_has_graph else "no",
            )
        return table

    def _losses_table(self) -> Table:
        training = self.config.training
        shape = f"{count_text(training.batch_size, 'transition')}, one agent"
        if isinstance(self.config, DreamerTrainConfig):
            length = count_text(self.config.training.sequence_length, "step")
            shape = f"{count_text(training.batch_size, 'sequence')} of {length}"
        table = _table(f"The loss of an update on {shape}", ["stored"], ["bytes held", "autograd nodes"])
        for row in self.losses:
            table.add_row(row.kept, f"{row.held_bytes:,}", f"{row.nodes:,}")
        return table

    def _arrays_table(self) -> Table:
        table = _table("Frames of an episode; all else is dropped", ["kept"], ["bytes shown", "bytes held"])
        for row in self.arrays:
            table.add_row(row.kept, f"{row.shown_bytes:,}", f"{row.held_bytes:,}")
        return table


@exit_on_user_error()
def main(arguments: list[str] | None = None) -> None:
    """Measure the requested configuration, print the tables, and save them if `incident.out` is set.

    The agent acts in one environment unless `env.num_envs` is set. The command takes about a minute on a CPU.

    Raises:
        SystemExit: With code 2 after a `UserError`.
    """
    typed_here = sys.argv[1:] if arguments is None else arguments
    settings, others = own_settings(IncidentConfig, typed_here, "benchmarks.incident", _USAGE, _PREFIX)
    overrides = ["env.num_envs=1", "compile=none", *others]
    if not any(text.startswith("experiment=") for text in overrides):
        overrides.insert(0, "experiment=dreamer_incident")
    config = typed(compose_jobs(overrides)[0])
    if config.run_dir is not None or config.resume is not None:
        raise UserError("benchmarks.incident neither makes nor reads a run. Omit run_dir and resume.")
    folder = None if settings.out is None else Path(settings.out)
    if folder is not None:
        _check_folder(folder)
    check_run(config, recipe_of(config))
    found = reenact(config, settings.steps, shlex.join(["python", "-m", "benchmarks.incident", *typed_here]))
    console = Console(highlight=False)
    found.show(console if console.is_terminal else Console(highlight=False, width=_WIDTH))
    if folder is not None:
        found.save(folder)


def reenact(config: TrainConfig, steps: int, command: str) -> Reenactment:
    """Reenact the incident with the components of one run, rebuilt for each combination of guards."""
    if isinstance(config, PopulationTrainConfig):
        losses = stored_losses_of_agents(config, environment_spec(config, recipe_of(config)))
        return Reenactment(command, config, [], losses, [])
    assert isinstance(config, DreamerTrainConfig)
    # Exclude the objects that exist now, so that the hundred collections that follow are short.
    gc.freeze()
    acting = acting_rows(config, steps)
    with TemporaryDirectory() as folder:
        parts = DreamerRecipe().build(config, Path(folder))
        with closing(parts.environment):
            arrays, losses = held_by(parts, config.training.batch_size)
    return Reenactment(command, config, acting, losses, arrays)


def _check_folder(folder: Path) -> None:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"incident.out={folder} cannot be created: {existing} is a file.")


def _table(title: str, words: list[str], numbers: list[str]) -> Table:
    table = Table(*words, title=title, title_justify="left")
    for name in numbers:
        table.add_column(name, justify="right")
    return table
