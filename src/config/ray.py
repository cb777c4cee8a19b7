"""Settings of where a population plays and learns."""

import importlib.util
from dataclasses import dataclass
from enum import Enum

from ..utils.errors import UserError
from ..utils.ranges import require_range


class Engine(Enum):
    """Where members play and learn; OmegaConf matches names, so the names are what users type."""

    local = "local"
    """In this process."""
    ray = "ray"
    """In workers of a Ray cluster, each with a group of members."""


LEAST_OBJECT_STORE_MIB = 80
"""Ray starts no object store that is smaller than 75 MiB."""


@dataclass(kw_only=True, slots=True)
class RayConfig:
    """Settings of `engine=ray`."""

    address: str | None = None
    """`auto`, or the address of a cluster to join; null starts one here and stops it at the end."""

    workers: int = 2
    """Processes among which the members are shared out."""

    object_store_mib: int = 200
    """Shared memory through which weights and transitions travel, in MiB, of a cluster started here."""

    def __post_init__(self) -> None:
        require_range("ray", self, "workers", ge=1)
        require_range("ray", self, "object_store_mib", ge=LEAST_OBJECT_STORE_MIB)


def require_ray(asked: str, otherwise: str = "") -> None:
    """Check that the package is there, without importing it.

    Args:
        asked: What needs it.
        otherwise: What else would help.

    Raises:
        UserError: If it is missing.
    """
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            f"{asked} needs the package ray, which is not installed here. Run `pip install "
            f"'reverie[ray]'`{otherwise}."
        )
