"""A plan as numbers and as text: for each resource what takes how much, and the limit."""

from dataclasses import dataclass
from enum import Enum

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..utils.units import count_text, size_text

HOST, GPU, DISK, ADDRESS = "host RAM", "GPU memory", "disk", "address space"
_SHOWN_IN_LOG = 4


class Basis(Enum):
    """How a number of the plan was found: exact sizes, read from this machine, or by `constants.py`."""

    counted = "counted"
    measured = "measured"
    estimated = "estimated"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that takes a resource."""

    name: str
    nbytes: int
    basis: Basis = Basis.counted
    is_once: bool = False
    """Whether the first of several ranks has it and no other."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource: what a rank takes of it at the moment when most is taken."""

    name: str
    rows: tuple[Row, ...]

    limit_bytes: int | None
    """Bytes that all ranks on this machine may take; None where that is not known."""

    limit_words: str
    """Where the limit comes from, as in "80 % of the 23.50 GiB of this machine"."""

    num_sharing: int = 1
    """Ranks that the limit is for: all on this machine, of a GPU those that share it."""

    @property
    def total_bytes(self) -> int:
        """Sum of the rows: the need of the first rank, and the most that any has."""
        return sum(row.nbytes for row in self.rows)

    @property
    def shared_bytes(self) -> int:
        """The need of all ranks that the limit is for."""
        others = sum(row.nbytes for row in self.rows if not row.is_once)
        return self.total_bytes + (self.num_sharing - 1) * others

    @property
    def fits(self) -> bool:
        """Whether the need is within the limit; true where there is none."""
        return self.limit_bytes is None or self.shared_bytes <= self.limit_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run will take of every resource."""

    name: str
    model: str
    device: str
    precision: str
    num_parameters: int
    ranks: int
    resources: tuple[Resource, ...]

    @property
    def over(self) -> list[Resource]:
        """Resources of which more is needed than there is."""
        return [resource for resource in self.resources if not resource.fits]

    @property
    def memory_mb(self) -> float:
        """Planned host and GPU memory of one rank together, in MB of 1e6 bytes."""
        return sum(r.total_bytes for r in self.resources if r.name in (HOST, GPU)) / 1e6

    def resource(self, name: str) -> Resource:
        """Return a resource by its name."""
        return next(resource for resource in self.resources if resource.name == name)

    def flat(self) -> dict[str, str | int | bool | None]:
        """Return the plan as one flat object for JSON.

        Keys: `name`, `model`, `device`, `precision`, `num_parameters`, `ranks`, `fits`; and for each resource
        (`host_ram`, `address_space` if limited, `gpu_memory` on device=cuda, `disk`)
        `<resource>.<row>_bytes` and their sum `<resource>.total_bytes` of one rank,
        `<resource>.shared_bytes` of all ranks on a machine (on
        one GPU), and `<resource>.limit_bytes` for them (null where it is unknown). Spaces become underscores.
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
    """Print a plan as one table for each resource."""
    model = f"model {plan.model}, {count_text(plan.num_parameters, 'parameter')}"
    ranks = f", each of {count_text(plan.ranks, 'rank')}" if plan.ranks > 1 else ""
    head = Text(f"{plan.name}: {model}, device={plan.device}, precision={plan.precision}{ranks}")
    console.print(Group(head, *(_table(resource) for resource in plan.resources)))


def plan_lines(plan: MemoryPlan) -> list[str]:
    """Return a plan in one line; with the largest parts of each resource where one is over its limit."""
    if not plan.over:
        shown = [(resource, resource.limit_bytes) for resource in plan.resources]
        totals = [
            f"{resource.name} {_need(resource)}{f' of {size_text(limit)}' if limit is not None else ''}"
            for resource, limit in shown
        ]
        return [f"plan  {', '.join(totals)}"]
    width, lines = max(len(resource.name) for resource in plan.resources), []
    for resource in plan.resources:
        rows = sorted(resource.rows, key=lambda row: -row.nbytes)
        parts = [f"{row.name} {size_text(row.nbytes)}" for row in rows[:_SHOWN_IN_LOG]]
        if rest := sum(row.nbytes for row in rows[_SHOWN_IN_LOG:]):
            parts.append(f"all else {size_text(rest)}")
        total = f"{_need(resource)} of {limit_text(resource)}"
        lines.append(f"plan  {resource.name:<{width}}  {total}: {', '.join(parts)}")
    return lines


def _need(resource: Resource) -> str:
    """Return what is needed of a resource, as in "3.00 GiB" or "6.00 GiB (2 ranks of 3.00 GiB)"."""
    ranks = f" ({count_text(resource.num_sharing, 'rank')} of {size_text(resource.total_bytes)})"
    return size_text(resource.shared_bytes) + (ranks if resource.num_sharing > 1 else "")


def limit_text(resource: Resource) -> str:
    """Return the limit to read, as in "18.80 GiB (80 % of ...)"."""
    if resource.limit_bytes is None:
        return resource.limit_words
    return f"{size_text(resource.limit_bytes)} ({resource.limit_words})"


def _table(resource: Resource) -> Table:
    table = Table(resource.name, "bytes", "", "", title_justify="left", expand=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    for row in resource.rows:
        basis = "" if row.basis is Basis.counted else row.basis.value
        if row.nbytes == 0:
            basis = "none at the moment of the peak"
        table.add_row(row.name, f"{row.nbytes:,}", size_text(row.nbytes), basis)
    table.add_section()
    totals = {"total": resource.total_bytes}
    if (count := resource.num_sharing) > 1:
        totals = {"total of a rank": resource.total_bytes, count_text(count, "rank"): resource.shared_bytes}
    for name, nbytes in totals.items():
        shown = Text(size_text(nbytes), "bold" if resource.fits else "bold red")
        is_over = not resource.fits and nbytes == resource.shared_bytes
        table.add_row(name, f"{nbytes:,}", shown, "over the limit" if is_over else "")
    limit = resource.limit_bytes
    known = ("", "") if limit is None else (f"{limit:,}", size_text(limit))
    table.add_row("limit", *known, resource.limit_words)
    return table
