"""A plan to read: as a table, and as lines of a log."""

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..utils.units import size_text
from .resources import Basis, MemoryPlan, Resource

_SHOWN_IN_LOG = 4


def show(plan: MemoryPlan, console: Console) -> None:
    """Print a plan as one table for each resource."""
    head = (
        f"{plan.name}: model {plan.model}, {plan.num_parameters:,} parameters, device={plan.device}, "
        f"precision={plan.precision}"
    )
    console.print(Group(Text(head), *(_table(resource) for resource in plan.resources)))


def plan_lines(plan: MemoryPlan) -> list[str]:
    """Return a plan in a line for each resource: total, limit, and the largest parts."""
    width = max(len(resource.name) for resource in plan.resources)
    return [f"plan  {resource.name:<{width}}  {_line(resource)}" for resource in plan.resources]


def limit_text(resource: Resource) -> str:
    """Return the limit to read, as in "18.80 GiB (80 % of ...)"."""
    if resource.limit_bytes is None:
        return resource.limit_words
    return f"{size_text(resource.limit_bytes)} ({resource.limit_words})"


def _table(resource: Resource) -> Table:
    table = Table(resource.name, "bytes", "", "", title_justify="left", expand=False)
    table.columns[1].justify = "right"
    table.columns[2].justify = "right"
    for row in resource.rows:
        basis = "" if row.basis is Basis.counted else row.basis.value
        if row.nbytes == 0:
            basis = "none at the moment of the peak"
        table.add_row(row.name, f"{row.nbytes:,}", size_text(row.nbytes), basis)
    table.add_section()
    total = Text(size_text(resource.total_bytes), "bold" if resource.fits else "bold red")
    table.add_row("total", f"{resource.total_bytes:,}", total, "" if resource.fits else "over the limit")
    known = f"{resource.limit_bytes:,}" if resource.limit_bytes is not None else ""
    limit = size_text(resource.limit_bytes) if resource.limit_bytes is not None else ""
    table.add_row("limit", known, limit, resource.limit_words)
    return table


def _line(resource: Resource) -> str:
    rows = sorted(resource.rows, key=lambda row: -row.nbytes)
    shown = [f"{row.name} {size_text(row.nbytes)}" for row in rows[:_SHOWN_IN_LOG]]
    rest = sum(row.nbytes for row in rows[_SHOWN_IN_LOG:])
    parts = ", ".join([*shown, *([f"all else {size_text(rest)}"] if rest else [])])
    return f"{size_text(resource.total_bytes)} of {limit_text(resource)}: {parts}"
