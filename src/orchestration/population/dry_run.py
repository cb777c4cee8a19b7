"""Compute a population's memory, and the data it sends to Ray workers, before any allocation."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial

import torch

from ...buffers import OBSERVATION_PREFIX, ReplaySpec, TransitionTable, plan_unchecked, record_fields
from ...config.population import Engine, PopulationTrainConfig
from ...config.schema import LEAST_OBJECT_STORE_MIB
from ...planning.constants import RAY_SERVICES_BYTES
from ...planning.recipe import DryRun, Labels
from ...planning.resources import Basis, Row
from ...planning.torch_modes import LiveBytes, MetaShapes
from ...utils.errors import UserError
from ...utils.timestep import EnvSpec
from ...workflows.population.config import TD3Config
from ...workflows.population.members import Members, Sizes, Stacked
from ...workflows.population.td3 import TD3, Microbatch
from .engines.rollouts import longest_episode

# Rows that persist for the whole run, followed by the rows of a training phase.
STATE = ("parameters", "target networks", "optimizer state", "best policy")
BEFORE, BATCHES = "members before the training phase", "batches of all members"
UPDATE = "update of all members"

WORKER_BYTES = 300_000_000
"""Memory of a worker with torch and small members (227 to 261 MB PSS). Updates are in the networks' rows."""

# The margin covers object headers and gaps.
_STORE_MARGIN = 1.1


def replay_spec(config: PopulationTrainConfig, env: EnvSpec) -> ReplaySpec:
    """Return the parameters that determine the replay's size.

    A single stream contains the complete episodes of all members. Windows are pairs of records from the same
    episode.
    """
    return ReplaySpec(config.buffer, env.observation, env.action, num_envs=1, window_length=2, latent=None)


def dry_run(config: PopulationTrainConfig, env: EnvSpec) -> DryRun:
    """Return the bytes of a run's members and of their training phase. The first call takes 1 s."""
    found = _dry_run_of(config, env)
    labels = {name: found.peak[name] for name in STATE}
    if config.population.gradient:
        labels[BEFORE] = found.state - labels["best policy"]
        labels[BATCHES] = _batch_bytes(config, env)
        labels[UPDATE] = found.peak[UPDATE]
    return replace(found, phases={"training phase": labels})


def generation_steps(config: PopulationTrainConfig, env: EnvSpec) -> int:
    """Return the maximum number of records in a generation."""
    return config.population.num_rollouts * (longest_episode(env) + 1)


def episode_bytes(config: PopulationTrainConfig, env: EnvSpec) -> int:
    """Return the bytes of all episodes of a generation at their maximum length."""
    record = sum(each.nbytes for each in env.observation.values()) + 4 * env.action.size + 4
    return generation_steps(config, env) * record


def host_rows(config: PopulationTrainConfig, env: EnvSpec) -> list[Row]:
    """Return the plan's rows for a generation's episodes and a local Ray cluster."""
    # The factor is 3, because the recorded episodes, the returned copies and their noise coexist.
    rows = [Row("episodes of a generation", 3 * episode_bytes(config, env))]
    if config.engine is Engine.ray and config.ray.address is None:
        rows += [
            Row("Ray's object store", config.ray.object_store_mib * 2**20),
            Row("Ray's workers", config.ray.workers * WORKER_BYTES, Basis.estimated),
            Row("Ray's services", RAY_SERVICES_BYTES, Basis.estimated),
        ]
    return rows


def transfer_bytes(config: PopulationTrainConfig, env: EnvSpec) -> Labels:
    """Return the maximum bytes that a generation of engine=ray sends, summed over members.

    `actors` are sent for acting and reused for training, when the `rest` of each member's state follows.
    `learned` is the members' complete state, which is sent back. The `table` of transitions is sent once to
    each node. `episodes` are assumed to have the maximum length.
    """
    found, learns = _dry_run_of(config, env), int(config.population.gradient)
    best = found.peak["best policy"]
    members, actors = found.state - best, config.population.size * best
    replay = plan_unchecked(replay_spec(config, env))
    return {
        "actors": actors,
        "rest": learns * (members - actors),
        "learned": learns * members,
        "table": learns * TransitionTable.nbytes_of(replay, config.buffer.capacity),
        "episodes": episode_bytes(config, env),
    }


def require_room(config: PopulationTrainConfig, env: EnvSpec, store_bytes: int) -> None:
    """Check that a whole generation fits into an object store, because Ray frees unused objects with a delay.

    Raises:
        UserError: If the generation does not fit. The message gives the required size.
    """
    sent, ray = transfer_bytes(config, env), config.ray
    needed = int(_STORE_MARGIN * sum(sent.values()))
    if needed > store_bytes:
        mib = max(LEAST_OBJECT_STORE_MIB, -(-needed // 2**20))
        where = f"ray.object_store_mib={ray.object_store_mib}"
        if ray.address is not None:
            where = f"the {store_bytes / 2**20:.0f} MiB of a node of ray.address={ray.address}"
        raise UserError(
            f"a generation sends {needed / 2**20:.1f} MiB, including {sent['table'] / 2**20:.1f} MiB of "
            f"transitions, which exceeds {where}. Set ray.object_store_mib={mib}, or lower buffer.capacity."
        )


def updates_on_zeros(config: PopulationTrainConfig, env: EnvSpec) -> Iterator[Callable[[], object]]:
    """Yield an update of temporary members on a batch of zeros, if members train in this process."""
    sizes, count = Sizes.of(env, config.td3), config.population.size
    if config.engine is Engine.local and config.population.gradient:
        members = Members(sizes, count, torch.device("cpu"))
        yield partial(TD3(config.td3).update, members, [_zeros(sizes, count, config.training.batch_size)])


def _zeros(sizes: Sizes, count: int, batch_size: int) -> Microbatch:
    """Return a batch of zeros for all `count` members, on torch's default device."""
    shape = (count, batch_size)
    return Microbatch(
        observation=torch.zeros(*shape, sizes.observation),
        action=torch.zeros(*shape, sizes.action),
        reward=torch.zeros(*shape),
        next_observation=torch.zeros(*shape, sizes.observation),
        is_terminal=torch.zeros(*shape, dtype=torch.bool),
        noise=torch.zeros(*shape, sizes.action),
    )


def _batch_bytes(config: PopulationTrainConfig, env: EnvSpec) -> int:
    """Return the bytes of an update's transitions and of the noise on their actions."""
    fields = record_fields(replay_spec(config, env))
    seen = sum(field.nbytes for name, field in fields.items() if name.startswith(OBSERVATION_PREFIX))
    transition = 2 * seen + 2 * fields["action"].nbytes + fields["reward"].nbytes + 1
    training = config.training
    count = config.population.size * training.gradient_accumulation_steps * training.batch_size
    # The second term is the concatenated copy of the observations.
    return count * (transition + 2 * seen)


def _dry_run_of(config: PopulationTrainConfig, env: EnvSpec) -> DryRun:
    training, sizes = config.training, Sizes.of(env, config.td3)
    accumulation = training.gradient_accumulation_steps
    return _dry_run_update(sizes, config.population.size, accumulation, training.batch_size)


@lru_cache(maxsize=64)
def _dry_run_update(sizes: Sizes, count: int, accumulation: int, batch_size: int) -> DryRun:
    """Return the bytes of the members and of an update, including the larger actor update."""
    counter = LiveBytes()
    with MetaShapes(), counter, torch.device("meta") as meta:
        members = Members(sizes, count, meta)
        batch = _zeros(sizes, count, batch_size)
        counter.reset_peak()
        before, operators = counter.live, counter.operators
        TD3(TD3Config(policy_delay=1)).update(members, [batch] * accumulation)
        peak, operators = counter.peak - before, counter.operators - operators
    networks = members.networks
    labels = {
        "parameters": _nbytes(networks["actor"], networks["critic"]),
        "target networks": _nbytes(networks["target_actor"], networks["target_critic"]),
        "optimizer state": _nbytes(*(each for pair in members.moments.values() for each in pair.values())),
        "best policy": _nbytes(networks["actor"]) // count,
    }
    phases, state = {"training phase": labels | {UPDATE: peak}}, sum(labels.values())
    return DryRun(
        members.num_parameters, phases, state, operators, lasting=STATE, batch=BATCHES, on_host=(BEFORE,)
    )


def _nbytes(*stacks: Stacked) -> int:
    return sum(tensor.nbytes for stacked in stacks for tensor in stacked.values())
