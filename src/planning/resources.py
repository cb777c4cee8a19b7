"""Plans as data and as text: the usage by component and the limit of each resource."""

from dataclasses import dataclass
from enum import Enum

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..utils.units import count_text, size_text

HOST, GPU, DISK, ADDRESS = "host RAM", "GPU memory", "disk", "address space"


class Basis(Enum):
    """Source of a number: counted exactly, measured on this machine, or estimated (see `constants.py`)."""

    counted = "counted"
    measured = "measured"
    estimated = "estimated"


@dataclass(frozen=True, slots=True)
class Row:
    """A component's usage of a resource."""

    name: str
    nbytes: int
    basis: Basis = Basis.counted
    is_once: bool = False
    """Whether only the first of several ranks uses this component."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource with a rank's peak usage."""

    name: str
    rows: tuple[Row, ...]

    limit_bytes: int | None
    """Limit in bytes for all ranks that share the resource, or `None` if unknown."""

    limit_words: str
    """Source of the limit, e.g. "80% of the 23.50 GiB of this machine or container"."""

    num_sharing: int = 1
    """Number of ranks that share the limit, either on this machine or on one GPU."""

    @property
    def total_bytes(self) -> int:
        """Sum of the rows. The first rank needs this much, and the others need at most as much."""
        return sum(row.nbytes for row in self.rows)

    @property
    def shared_bytes(self) -> int:
        """Total bytes needed by the ranks that share the limit."""
        others = sum(row.nbytes for row in self.rows if not row.is_once)
        return self.total_bytes + (self.num_sharing - 1) * others

    @property
    def fits(self) -> bool:
        """Whether the total is within the limit. An unknown limit counts as sufficient."""
        return self.limit_bytes is None or self.shared_bytes <= self.limit_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Planned usage of every resource of a run."""

    name: str
    model: str
    device: str
    precision: str
    num_parameters: int
    ranks: int
    resources: tuple[Resource, ...]

    @property
    def over(self) -> list[Resource]:
        """Resources that exceed their limit."""
        return [resource for resource in self.resources if not resource.fits]

    @property
    def memory_mb(self) -> float:
        """Planned host and GPU memory of one rank in total, in MB (1e6 bytes)."""
        return sum(r.total_bytes for r in self.resources if r.name in (HOST, GPU)) / 1e6

    def resource(self, name: str) -> Resource:
        """Return a resource by name."""
        return next(resource for resource in self.resources if resource.name == name)

    def flat(self) -> dict[str, str | int | bool | None]:
        """Return the plan as a flat JSON object.

        Common keys are `name`, `model`, `device`, `precision`, `num_parameters`, `ranks` and `fits`. Each
        resource (`host_ram`, `address_space` if limited, `gpu_memory` on device=cuda, `disk`) has
        `<resource>.<row>_bytes` and their sum `<resource>.total_bytes` for one rank,
        `<resource>.shared_bytes` for all ranks on a machine or GPU, and their `<resource>.limit_bytes` (null
        if unknown). Underscores replace spaces in names.
        """
        names = ("name", "model", "device", "precision", "num_parameters", "ranks")
        found = {name: getattr(self, name) for name in names} | {"fits": not self.over}
        for resource in self.resources:
            prefix = _key(resource.name)
            found |= {f"{prefix}.{_key(row.name)}_bytes": row.nbytes for row in resource.rows}
            found[f"{prefix}.total_bytes"] = resource.total_bytes
            found[f"{prefix}.shared_bytes"] = resource.shared_bytes
            found[f"{prefix}.limit_bytes"] = resource.limit_bytes
        return found


def _key(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower().replace("'", ""))


def show(plan: MemoryPlan, console: Console) -> None:
    """Print whether a plan fits, and one table per resource."""
    verdict = Text(verdict_text(plan), "bold red" if plan.over else "bold")
    model = f"model {plan.model}, {count_text(plan.num_parameters, 'parameter')}"
    ranks = f", each of {count_text(plan.ranks, 'rank')}" if plan.ranks > 1 else ""
    head = Text(f"{plan.name}: {model}, device={plan.device}, precision={plan.precision}{ranks}")
    console.print(Group(verdict, head, *(_table(resource) for resource in plan.resources)))


def verdict_text(plan: MemoryPlan) -> str:
    """Return a sentence on whether a plan fits, with the amount of each resource and any limits exceeded."""
    needs = []
    for each in plan.resources:
        remark = " (limit unknown)" if each.limit_bytes is None else ""
        remark += "" if each.fits else f", over {limit_text(each)}"
        needs.append(f"{each.name} {need_text(each)}{remark}")
    return f"{'Does not fit' if plan.over else 'Fits'}: {', '.join(needs)}."


def plan_line(plan: MemoryPlan) -> str:
    """Return a line for the log with the amount of each resource and its limit."""
    totals = [
        f"{r.name} {need_text(r)}{'' if r.limit_bytes is None else f' of {size_text(r.limit_bytes)}'}"
        for r in plan.resources
    ]
    return f"plan  {', '.join(totals)}"


def need_text(resource: Resource) -> str:
    """Format the amount of a resource: "3.00 GiB" or "6.00 GiB (2 ranks of 3.00 GiB)"."""
    ranks = f" ({count_text(resource.num_sharing, 'rank')} of {size_text(resource.total_bytes)})"
    return size_text(resource.shared_bytes) + (ranks if resource.num_sharing > 1 else "")


def limit_text(resource: Resource) -> str:
    """Format the limit of a resource: "18.80 GiB (80% of ...)"."""
    if resource.limit_bytes is None:
        return resource.limit_words
    return f"{size_text(resource.limit_bytes)} ({resource.limit_words})"


def _table(resource: Resource) -> Table:
    table = Table(resource.name, "", "", title_justify="left", expand=False)
    table.columns[1].justify = "right"
    for row in resource.rows:
        basis = "" if row.basis is Basis.counted else row.basis.value
        table.add_row(row.name, size_text(row.nbytes), basis if row.nbytes else "not allocated at the peak")
    table.add_section()
    totals = {"total": resource.total_bytes}
    if (count := resource.num_sharing) > 1:
        totals = {"total of a rank": resource.total_bytes, count_text(count, "rank"): resource.shared_bytes}
    for name, nbytes in totals.items():
        shown = Text(size_text(nbytes), "bold" if resource.fits else "bold red")
        is_over = not resource.fits and nbytes == resource.shared_bytes
        table.add_row(name, shown, "over the limit" if is_over else "")
    limit = resource.limit_bytes
    table.add_row("limit", "" if limit is None else size_text(limit), Text(resource.limit_words))
    return table
