"""TD3 (Fujimoto et al. 2018) for all members in parallel, with separate batches from a shared buffer.

"Addressing Function Approximation Error in Actor-Critic Methods": two critics, noisy targets, delayed actors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam

from ...buffers import EpisodeReplayBuffer, TransitionBatch, TransitionTable
from ...utils.seeding import numpy_generator, torch_generator
from .config import TD3Config
from .members import Members, Stacked

_ADAM = partial(adam, amsgrad=False, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, maximize=False)


@dataclass(frozen=True, slots=True)
class TrainPhase:
    """The updates of one group of members in one generation."""

    seed: int
    """Seed of the run. With the generation and a member's number, it determines batches and noise."""

    generation: int

    members: tuple[int, ...]
    """Numbers of the members in the order of their rows."""

    steps: int
    """Number of critic updates."""

    accumulation: int
    """Number of batches per update. Their gradients are summed."""

    batch_size: int


@dataclass(frozen=True, slots=True)
class Microbatch:
    """One batch per member, (M, B, ...) on the members' device."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    next_observation: Tensor
    is_terminal: Tensor
    noise: Tensor
    """Standard normal noise (M, B, A)."""


class TD3:
    """Trains all members of a group in parallel."""

    def __init__(self, config: TD3Config) -> None:
        self.config = config

    def learn(
        self, members: Members, replay: EpisodeReplayBuffer | TransitionTable, phase: TrainPhase
    ) -> dict[str, Tensor]:
        """Perform the updates of a phase. Return the mean losses by name, each (M,) and detached.

        With at least two members per group, the results do not depend on the grouping, bit for bit.
        """
        size = phase.accumulation * phase.batch_size
        # These names determine the random streams, so changing them would change results.
        names = [f"lesson {phase.generation} of member {member}" for member in phase.members]
        drawn_indices = [numpy_generator(phase.seed, name) for name in names]
        drawn_noise = [torch_generator(phase.seed, name) for name in names]
        sums = {name: torch.zeros(members.count, device=members.device) for name in ("critic", "actor")}
        counts = dict.fromkeys(sums, 0)
        batch: TransitionBatch | None = None
        for _ in range(phase.steps):
            indices = [each.integers(replay.num_transitions, size=size) for each in drawn_indices]
            batch = replay.transitions(np.concatenate(indices), out=batch)
            noise = [torch.randn(size, members.sizes.action, generator=each) for each in drawn_noise]
            batches = _microbatches(batch, torch.stack(noise), members, phase.accumulation)
            for name, loss in self.update(members, batches).items():
                sums[name] += loss
                counts[name] += 1
        return {name: sums[name] / count for name, count in counts.items() if count}

    def update(self, members: Members, batches: Sequence[Microbatch]) -> dict[str, Tensor]:
        """Perform one update with the summed gradients of all batches. Return the losses, each (M,)."""
        networks = members.networks
        losses = {"critic": self._step(members, "critic", batches)}
        members.updates += 1
        if members.updates % self.config.policy_delay == 0:
            losses["actor"] = self._step(members, "actor", batches)
            for name in ("actor", "critic"):
                targets = networks[f"target_{name}"].values()
                for target, trained in zip(targets, networks[name].values(), strict=True):
                    target.lerp_(trained, self.config.tau)
        return losses

    def critic_loss(self, members: Members, critic: Stacked, batch: Microbatch) -> Tensor:
        """Return the sum of both critics' mean squared errors, (M,)."""
        networks, config = members.networks, self.config
        clip = config.target_noise_clip
        with torch.no_grad():
            noise = (batch.noise * config.target_noise).clamp(-clip, clip)
            action = (members.act(networks["target_actor"], batch.next_observation) + noise).clamp(-1, 1)
            future = members.q_values(networks["target_critic"], batch.next_observation, action).amin(-1)
            # A truncated episode could have continued, so only terminal steps are not bootstrapped.
            target = batch.reward + config.discount * torch.where(batch.is_terminal, 0.0, future)
        estimates = members.q_values(critic, batch.observation, batch.action)
        return (estimates - target[..., None]).square().mean(1).sum(-1)

    def actor_loss(self, members: Members, actor: Stacked, batch: Microbatch) -> Tensor:
        """Return the negative mean of the first critic's estimates for the actor's actions, (M,)."""
        action = members.act(actor, batch.observation)
        return -members.q_values(members.networks["critic"], batch.observation, action)[..., 0].mean(1)

    def total(self, losses: Tensor) -> Tensor:
        """Return the sum of the independent members' losses, from which a single backward pass starts."""
        return losses.sum()

    def _step(self, members: Members, name: str, batches: Sequence[Microbatch]) -> Tensor:
        """Sum the gradients of all batches, perform one Adam step and return the mean loss (M,)."""
        if name == "critic":
            loss_of, learning_rate, done = self.critic_loss, self.config.critic_learning_rate, members.updates
        else:
            loss_of, learning_rate = self.actor_loss, self.config.actor_learning_rate
            done = members.updates // self.config.policy_delay - 1
        stacked, moments = members.networks[name], members.moments[name]
        leaves = {key: tensor.detach().requires_grad_() for key, tensor in stacked.items()}
        mean = torch.zeros(members.count, device=members.device)
        for batch in batches:
            losses = loss_of(members, leaves, batch) / len(batches)
            self.total(losses).backward()
            mean += losses.detach()
        gradients = [leaf.grad for leaf in leaves.values() if leaf.grad is not None]
        first, second = (list(moments[each].values()) for each in ("first", "second"))
        counts = [torch.tensor(float(done), device="cpu") for _ in stacked]
        with torch.no_grad():
            _ADAM(list(stacked.values()), gradients, first, second, [], counts, lr=learning_rate)
        return mean


def _microbatches(batch: TransitionBatch, noise: Tensor, members: Members, count: int) -> list[Microbatch]:
    """Split a batch, whose rows are ordered by member, into `count` microbatches."""
    batch = batch.to(members.device)

    def cut(values: Tensor) -> tuple[Tensor, ...]:
        return values.unflatten(0, (members.count, -1)).chunk(count, 1)

    fields = (
        cut(flat_observation(batch.observation)),
        cut(batch.action),
        cut(batch.reward),
        cut(flat_observation(batch.next_observation)),
        cut(batch.is_terminal),
        noise.to(members.device).chunk(count, 1),
    )
    return [Microbatch(*each) for each in zip(*fields, strict=True)]


def flat_observation(observation: Mapping[str, Tensor | NDArray]) -> Tensor:
    """Concatenate all keys in sorted order. The result is (..., O) float32."""
    return torch.cat([torch.as_tensor(observation[key]).float() for key in sorted(observation)], -1)
