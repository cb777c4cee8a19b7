"""The lesson of a population rehearsed without memory: what it will hold, to the byte."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from ...buffers.plan import OBSERVATION_PREFIX, record_fields
from ...config.population import PopulationTrainConfig as TrainConfig
from ...planning.live_bytes import LiveBytes
from ...planning.meta_shapes import MetaShapes
from ...planning.recipe import DryRun
from ...planning.resources import Row
from ...utils.timestep import EnvSpec
from ...workflows.population import TD3, Members, Piece, Sizes, Stacked, TD3Config
from .engines.rollouts import longest_episode, num_slots
from .parts import replay_request

META = torch.device("meta")

STATE = ("parameters", "slow copies", "optimiser state", "best policy")
"""What lives as long as the run."""

BEFORE, BATCHES = "members as they were before the lesson", "batches of all members"
"""What a lesson needs besides its update; the first is on the host, wherever the members are."""


def dry_run(config: TrainConfig, spec: EnvSpec) -> DryRun:
    """Return what the members of a run hold, and what a lesson needs beside; nothing is allocated.

    Cost: 1 s once.
    """
    training, sizes = config.training, Sizes.of(spec, config.td3)
    accumulation = training.gradient_accumulation_steps
    lesson = _rehearse(sizes, config.population.size, accumulation, training.batch_size)
    labels = dict(lesson.held)
    state = sum(labels.values())
    if config.population.gradient:
        labels[BEFORE] = state - labels["best policy"]
        labels[BATCHES] = _batch_bytes(config, spec)
        labels["update of all members"] = lesson.update
    return DryRun(
        lesson.num_parameters,
        {"lesson": labels},
        state,
        lesson.operators,
        lasting=STATE,
        batch=BATCHES,
        on_host=(BEFORE,),
    )


def episodes_row(config: TrainConfig, spec: EnvSpec) -> Row:
    """Return the episodes of a generation: as they are written, as they are handed on, and their noise."""
    return Row("episodes of a generation", 3 * episode_bytes(config, spec))


def generation_steps(config: TrainConfig, spec: EnvSpec) -> int:
    """Return the most records of one generation."""
    return num_slots(config.population) * (longest_episode(spec) + 1)


def episode_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Return the bytes of all episodes of a generation, each as long as it may be."""
    record = sum(each.nbytes for each in spec.observation.values()) + 4 * spec.action.size + 4
    return generation_steps(config, spec) * record


def _batch_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Return the bytes of the transitions of one update, and of the noise on their actions."""
    fields = record_fields(replay_request(config, spec))
    seen = sum(field.nbytes for name, field in fields.items() if name.startswith(OBSERVATION_PREFIX))
    transition = 2 * seen + 2 * fields["action"].nbytes + fields["reward"].nbytes + 1
    training = config.training
    count = config.population.size * training.gradient_accumulation_steps * training.batch_size
    return count * (transition + 2 * seen)  # observations once more, side by side


@dataclass(frozen=True, slots=True)
class _Lesson:
    """What an update of all members takes."""

    held: dict[str, int]
    """Bytes of what lives as long as the members, by name."""

    update: int
    """Most bytes beside them."""

    operators: int
    num_parameters: int


@lru_cache(maxsize=64)
def _rehearse(sizes: Sizes, count: int, accumulation: int, batch_size: int) -> _Lesson:
    """Return the numbers of one update of critics and actors, the larger kind."""
    counter = LiveBytes()
    with MetaShapes(), counter, META:
        members = Members(sizes, count, META)
        shape = (count, batch_size)
        piece = Piece(
            observation=torch.empty(*shape, sizes.observation),
            action=torch.empty(*shape, sizes.action),
            reward=torch.empty(*shape),
            next_observation=torch.empty(*shape, sizes.observation),
            is_terminal=torch.empty(*shape, dtype=torch.bool),
            noise=torch.empty(*shape, sizes.action),
        )
        counter.reset_peak()
        before, operators = counter.live, counter.operators
        TD3(TD3Config(policy_delay=1)).update(members, [piece] * accumulation)
        update, operators = counter.peak - before, counter.operators - operators
    networks = members.networks
    held = {
        "parameters": _nbytes(networks["actor"], networks["critic"]),
        "slow copies": _nbytes(networks["slow_actor"], networks["slow_critic"]),
        "optimiser state": _nbytes(*(each for pair in members.moments.values() for each in pair.values())),
        "best policy": _nbytes(networks["actor"]) // count,
    }
    return _Lesson(held, update, operators, members.num_parameters)


def _nbytes(*stacks: Stacked) -> int:
    return sum(tensor.nbytes for stacked in stacks for tensor in stacked.values())
