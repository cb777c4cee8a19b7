"""Dry-run the training phase of a population without memory: the bytes that it will hold."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from ...buffers.plan import OBSERVATION_PREFIX, record_fields
from ...config.population import PopulationTrainConfig
from ...planning.recipe import DryRun
from ...planning.resources import Row
from ...planning.torch_modes import LiveBytes, MetaShapes
from ...utils.timestep import EnvSpec
from ...workflows.population import TD3, Members, Microbatch, Sizes, Stacked, TD3Config
from .engines.rollouts import longest_episode, num_rollouts
from .parts import replay_spec

META = torch.device("meta")

STATE = ("parameters", "target networks", "optimiser state", "best policy")
"""Rows that live as long as the run."""

BEFORE, BATCHES = "members before the training phase", "batches of all members"
"""Rows of a training phase apart from its update; the first is on the host, wherever the members are."""


def dry_run(config: PopulationTrainConfig, spec: EnvSpec) -> DryRun:
    """Return the bytes of the members of a run and of their training phase; allocates nothing.

    Cost: 1 s once.
    """
    training, sizes = config.training, Sizes.of(spec, config.td3)
    accumulation = training.gradient_accumulation_steps
    update = _dry_run_update(sizes, config.population.size, accumulation, training.batch_size)
    labels = dict(update.held)
    state = sum(labels.values())
    if config.population.gradient:
        labels[BEFORE] = state - labels["best policy"]
        labels[BATCHES] = _batch_bytes(config, spec)
        labels["update of all members"] = update.peak
    return DryRun(
        update.num_parameters,
        {"training phase": labels},
        state,
        update.operators,
        lasting=STATE,
        batch=BATCHES,
        on_host=(BEFORE,),
    )


def episodes_row(config: PopulationTrainConfig, spec: EnvSpec) -> Row:
    """Return the episodes of a generation three times: written, returned, and their noise."""
    return Row("episodes of a generation", 3 * episode_bytes(config, spec))


def generation_steps(config: PopulationTrainConfig, spec: EnvSpec) -> int:
    """Return the most records of one generation."""
    return num_rollouts(config.population) * (longest_episode(spec) + 1)


def episode_bytes(config: PopulationTrainConfig, spec: EnvSpec) -> int:
    """Return the bytes of all episodes of a generation, each as long as it may be."""
    record = sum(each.nbytes for each in spec.observation.values()) + 4 * spec.action.size + 4
    return generation_steps(config, spec) * record


def _batch_bytes(config: PopulationTrainConfig, spec: EnvSpec) -> int:
    """Return the bytes of the transitions of one update, and of the noise on their actions."""
    fields = record_fields(replay_spec(config, spec))
    seen = sum(field.nbytes for name, field in fields.items() if name.startswith(OBSERVATION_PREFIX))
    transition = 2 * seen + 2 * fields["action"].nbytes + fields["reward"].nbytes + 1
    training = config.training
    count = config.population.size * training.gradient_accumulation_steps * training.batch_size
    return count * (transition + 2 * seen)  # observations once more, concatenated


@dataclass(frozen=True, slots=True)
class _UpdateBytes:
    """Bytes of the members and of one update of all of them."""

    held: dict[str, int]
    """Bytes that live as long as the members, by name."""

    peak: int
    """Most bytes of an update on top of `held`."""

    operators: int
    num_parameters: int


@lru_cache(maxsize=64)
def _dry_run_update(sizes: Sizes, count: int, accumulation: int, batch_size: int) -> _UpdateBytes:
    """Return the numbers of one update of critics and actors, the larger kind."""
    counter = LiveBytes()
    with MetaShapes(), counter, META:
        members = Members(sizes, count, META)
        shape = (count, batch_size)
        batch = Microbatch(
            observation=torch.empty(*shape, sizes.observation),
            action=torch.empty(*shape, sizes.action),
            reward=torch.empty(*shape),
            next_observation=torch.empty(*shape, sizes.observation),
            is_terminal=torch.empty(*shape, dtype=torch.bool),
            noise=torch.empty(*shape, sizes.action),
        )
        counter.reset_peak()
        before, operators = counter.live, counter.operators
        TD3(TD3Config(policy_delay=1)).update(members, [batch] * accumulation)
        peak, operators = counter.peak - before, counter.operators - operators
    networks = members.networks
    held = {
        "parameters": _nbytes(networks["actor"], networks["critic"]),
        "target networks": _nbytes(networks["target_actor"], networks["target_critic"]),
        "optimiser state": _nbytes(*(each for pair in members.moments.values() for each in pair.values())),
        "best policy": _nbytes(networks["actor"]) // count,
    }
    return _UpdateBytes(held, peak, operators, members.num_parameters)


def _nbytes(*stacks: Stacked) -> int:
    return sum(tensor.nbytes for stacked in stacks for tensor in stacked.values())
