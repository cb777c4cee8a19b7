"""Memory of engine=ray on the machine of the run."""

from ...config.population import Engine, PopulationTrainConfig
from ...planning.resources import Basis, Row
from ...utils.timestep import EnvSpec
from .parts import ray_transfer_size

WORKER_BYTES = 300_000_000
"""One worker with torch and small members; measured 227 to 261 MB as PSS. Updates of larger members are
counted with the networks, which the driver then does not compute with."""

SERVICES_BYTES = 400_000_000
"""The processes of a cluster without workers: head, node, agents, monitors; measured 366 to 371 MB as PSS."""


def ray_rows(config: PopulationTrainConfig) -> list[Row]:
    """Return the rows of host memory of engine=ray; none with engine=local.

    A cluster that is joined has its own memory, wherever its workers are.
    """
    if config.engine is not Engine.ray or config.ray.address is not None:
        return []
    return [
        Row("Ray's object store", config.ray.object_store_mib * 2**20),
        Row("Ray's workers", config.ray.workers * WORKER_BYTES, Basis.estimated),
        Row("Ray's services", SERVICES_BYTES, Basis.estimated),
    ]


def require_room(config: PopulationTrainConfig, spec: EnvSpec) -> None:
    """Check that the object store of a cluster that is to be started holds what a generation sends.

    Raises:
        UserError: If it does not, naming the size that does.
    """
    if config.engine is Engine.ray and config.ray.address is None:
        ray_transfer_size(config, spec).require_room(config.ray.object_store_mib * 2**20, config.ray)
