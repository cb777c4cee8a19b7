"""A plan as numbers: for each resource what takes how much, and the limit."""

from dataclasses import dataclass
from enum import Enum


class Basis(Enum):
    """How a number of the plan was found."""

    counted = "counted"
    """Sizes of arrays and tensors: exact."""

    measured = "measured"
    """Read from this process or machine."""

    estimated = "estimated"
    """A share or a constant that was measured once, elsewhere; see `constants.py`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that takes a resource."""

    name: str
    nbytes: int
    basis: Basis = Basis.counted


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource: what takes it at the moment when most is taken."""

    name: str
    """host RAM, GPU memory or disk."""

    rows: tuple[Row, ...]

    limit_bytes: int | None
    """Bytes that the run may take; None where that is not known."""

    limit_words: str
    """Where the limit comes from, as in "80 % of the 23.50 GiB of this machine"."""

    @property
    def total_bytes(self) -> int:
        """Sum of the rows."""
        return sum(row.nbytes for row in self.rows)

    @property
    def fits(self) -> bool:
        """Whether the total is within the limit; true where there is none."""
        return self.limit_bytes is None or self.total_bytes <= self.limit_bytes

    def bytes_of(self, name: str) -> int:
        """Return the bytes of one row, 0 if there is no such row."""
        return sum(row.nbytes for row in self.rows if row.name == name)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run will take of every resource."""

    name: str
    model: str
    device: str
    precision: str
    num_parameters: int
    resources: tuple[Resource, ...]

    @property
    def over(self) -> list[Resource]:
        """Resources of which more is needed than there is."""
        return [resource for resource in self.resources if not resource.fits]

    @property
    def memory_mb(self) -> float:
        """Planned host and GPU memory together, in MB of 1e6 bytes."""
        return sum(r.total_bytes for r in self.resources if r.name != DISK) / 1e6

    def resource(self, name: str) -> Resource:
        """Return a resource by its name."""
        return next(resource for resource in self.resources if resource.name == name)

    def flat(self) -> dict[str, str | int | bool | None]:
        """Return the plan as one flat object for JSON.

        Keys: `name`, `model`, `device`, `precision`, `num_parameters`, `fits`; and for each resource
        (`host_ram`, `gpu_memory` on device=cuda, `disk`) `<resource>.<row>_bytes` for each row,
        `<resource>.total_bytes` and `<resource>.limit_bytes` (null where no limit is known). Spaces of names
        become underscores.
        """
        found: dict[str, str | int | bool | None] = {
            "name": self.name,
            "model": self.model,
            "device": self.device,
            "precision": self.precision,
            "num_parameters": self.num_parameters,
            "fits": not self.over,
        }
        for resource in self.resources:
            prefix = _key(resource.name)
            found |= {f"{prefix}.{_key(row.name)}_bytes": row.nbytes for row in resource.rows}
            found[f"{prefix}.total_bytes"] = resource.total_bytes
            found[f"{prefix}.limit_bytes"] = resource.limit_bytes
        return found


HOST, GPU, DISK = "host RAM", "GPU memory", "disk"


def _key(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower().replace("'", ""))
