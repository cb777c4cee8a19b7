"""Compute the bytes that a generation sends through Ray's object store, before anything is sent."""

from dataclasses import dataclass

import torch

from ....buffers import ReplayPlan, TransitionTable
from ....config.population import LEAST_OBJECT_STORE_MIB, RayConfig
from ....utils.errors import UserError
from ....utils.timestep import EnvSpec
from ....workflows.population import PopulationConfig, Sizes, TD3Config
from .rollouts import longest_episode, num_rollouts

_MARGIN = 1.1
"""For headers of objects, and gaps between them."""

_COPIES_TO_LEARN = 4
"""Of each trained network: itself, the target network, and two moments."""


@dataclass(frozen=True, slots=True)
class TransferSize:
    """Bytes that one generation sends, of all members together."""

    actors: int
    """Sent to play; learning reads them in place."""

    rest: int
    """Sent to learn, in addition to actors: critics, target networks, moments."""

    learned: int
    """Sent back after learning: all of it."""

    table: int
    """Transitions to learn from, once for each node."""

    episodes: int
    """Sent back from playing, each episode of the greatest length."""

    @property
    def total(self) -> int:
        """Bytes of a generation with one node."""
        return self.actors + self.rest + self.learned + self.table + self.episodes

    @property
    def needed_bytes(self) -> int:
        """Bytes that the object store must hold; Ray frees unused objects with a delay."""
        return int(_MARGIN * self.total)

    def require_room(self, store_bytes: int, config: RayConfig) -> None:
        """Check that an object store holds a generation.

        Raises:
            UserError: If it does not, naming the size that does.
        """
        if self.needed_bytes > store_bytes:
            mib = max(LEAST_OBJECT_STORE_MIB, -(-self.needed_bytes // 2**20))
            where = (
                f"ray.object_store_mib={config.object_store_mib}"
                if config.address is None
                else f"the {store_bytes / 2**20:.0f} MiB of a node of ray.address={config.address}"
            )
            raise UserError(
                f"a generation sends {self.needed_bytes / 2**20:.1f} MiB, of which transitions are "
                f"{self.table / 2**20:.1f} MiB: over {where}. Set ray.object_store_mib={mib}, or lower "
                "buffer.capacity."
            )


def transfer_size(
    population: PopulationConfig, td3: TD3Config, spec: EnvSpec, replay: ReplayPlan, capacity: int
) -> TransferSize:
    """Return the most that a generation sends.

    Args:
        population: Members and their episodes.
        td3: Width of the networks.
        spec: Shapes of what is observed and done.
        replay: What a record of the replay is.
        capacity: Records of the replay.

    Raises:
        UserError: If the length of an episode has no limit.
    """
    actor, critic = _network_bytes(Sizes.of(spec, td3))
    state = _COPIES_TO_LEARN * (actor + critic)
    record = sum(each.nbytes for each in spec.observation.values()) + 4 * spec.action.size + 4
    episodes = num_rollouts(population)
    learns = int(population.gradient)
    return TransferSize(
        actors=population.size * actor,
        rest=learns * population.size * (state - actor),
        learned=learns * population.size * state,
        table=learns * TransitionTable.nbytes_of(replay, capacity),
        episodes=episodes * (longest_episode(spec) + 1) * record,
    )


def _network_bytes(sizes: Sizes) -> tuple[int, int]:
    """Return the bytes of one actor and of one pair of critics."""
    with torch.device("meta"):
        networks = sizes.actor(), sizes.critic()
    actor, critic = (sum(each.nbytes for each in network.parameters()) for network in networks)
    return actor, critic
