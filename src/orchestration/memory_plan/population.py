"""The lesson of a population rehearsed without memory: what it will hold, to the byte."""

from functools import lru_cache

import torch

from ...buffers.plan import OBSERVATION_PREFIX, record_fields
from ...envs import make_simulators
from ...utils.memory.live_bytes import LiveBytes
from ...utils.memory.meta_shapes import MetaShapes
from ...utils.records import EnvSpec
from ...workflows.population import TD3, Members, Piece, Sizes, TD3Config
from ..build import replay_request
from ..config import TrainConfig
from ..engines.rollouts import episodes_of, longest_episode
from .resources import Row

_UPDATE = "update of all members"


def population_rows(config: TrainConfig, spec: EnvSpec) -> list[Row]:
    """Return what members hold at the peak of a lesson, what they learn from, and what they play."""
    sizes = Sizes.of(spec, config.td3)
    held, update = _rehearse(
        sizes, config.population.size, config.training.gradient_accumulation_steps, config.training.batch_size
    )
    rows = [Row(name, nbytes) for name, nbytes in held.items()]
    if config.population.gradient:
        rows += [
            Row("members as they were before the lesson", sum(held.values()) - held["best policy"]),
            Row("batches of all members", _batch_bytes(config, spec)),
            Row(_UPDATE, update),
        ]
    # As they are written, as they are handed on, and the noise of exploring ones.
    return [*rows, Row("episodes of a generation", 3 * episode_bytes(config, spec))]


def member_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Return the bytes of one member: networks, slow copies and moments; what travels, and what is saved."""
    held, _ = _rehearse(Sizes.of(spec, config.td3), 1, 1, 1)
    return sum(held.values()) - held["best policy"]


def episode_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Return the bytes of all episodes of a generation, each as long as it may be."""
    record = sum(each.nbytes for each in spec.observation.values()) + 4 * spec.action.size + 4
    population = config.population
    count = sum(episodes_of(population, member) for member in range(population.size))
    return count * (_longest(config, spec) + 1) * record


def _longest(config: TrainConfig, spec: EnvSpec) -> int:
    simulators = make_simulators(config.env, 1)
    simulators.close()
    return longest_episode(spec, simulators.longest_episode)


def _batch_bytes(config: TrainConfig, spec: EnvSpec) -> int:
    """Return the bytes of the transitions of one update, and of the noise on their actions."""
    fields = record_fields(replay_request(config, spec))
    seen = sum(field.nbytes for name, field in fields.items() if name.startswith(OBSERVATION_PREFIX))
    transition = 2 * seen + 2 * fields["action"].nbytes + fields["reward"].nbytes + 1
    training = config.training
    count = config.population.size * training.gradient_accumulation_steps * training.batch_size
    return count * (transition + 2 * seen)  # observations once more, side by side


@lru_cache(maxsize=64)
def _rehearse(sizes: Sizes, count: int, accumulation: int, batch_size: int) -> tuple[dict[str, int], int]:
    """Return the bytes of what lives as long as the members, by name, and the most that an update adds."""
    counter = LiveBytes()
    with MetaShapes(), counter, torch.device("meta"):
        members = Members(sizes, count, torch.device("meta"))
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
        before = counter.live
        learner = TD3(TD3Config(policy_delay=1))  # critics and actors: the larger update
        learner.update(members, [piece] * accumulation)
        update = counter.peak - before
    networks, moments = members.networks, members.moments
    return {
        "parameters": sum(t.nbytes for name in ("actor", "critic") for t in networks[name].values()),
        "slow copies": sum(t.nbytes for name in ("slow_actor", "slow_critic") for t in networks[name].values()),
        "optimiser state": sum(
            tensor.nbytes for pair in moments.values() for stacked in pair.values() for tensor in stacked.values()
        ),
        "best policy": sum(t[:1].nbytes for t in networks["actor"].values()),
    }, update
