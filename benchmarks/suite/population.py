"""Rows for a population: all members in one stack, compared with a Python loop over them."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.suite.bench import Bench
from benchmarks.suite.compare import OURS, compare
from benchmarks.suite.floors import count_work
from benchmarks.suite.results import Floor, Result
from benchmarks.suite.timing import Local
from reverie.workflows.population.config import TD3Config
from reverie.workflows.population.members import Members, Sizes
from reverie.workflows.population.td3 import TD3, Microbatch

MEMBERS = 16
_BATCH = 128
_SWIMMER = (8, 2)
"""Sizes of the observation and action vectors of Swimmer-v5."""

_STACKS_OF_ONE, _PLAIN = "loop over stacks of one member", "loop over members in plain PyTorch"
_FLOOR = "our matrix products at their measured rate"


def members_update(bench: Bench, row: str, hidden: int) -> list[Result]:
    """Measure one TD3 update of critics, actors and targets of 16 members with 128 transitions each."""
    config = TD3Config(hidden_units=hidden, policy_delay=1)
    sizes, learner = Sizes(*_SWIMMER, hidden), TD3(config)
    together = Members(sizes, MEMBERS, bench.device)
    alone = [Members(sizes, 1, bench.device) for _ in range(MEMBERS)]
    plain = [_PlainMember(sizes, config, bench.device) for _ in range(MEMBERS)]
    piece = _piece(sizes, bench.device)
    rows = [_rows(piece, slice(i, i + 1)) for i in range(MEMBERS)]

    def loop() -> None:
        for members, part in zip(alone, rows, strict=True):
            learner.update(members, [part])

    def plain_loop() -> None:
        for member, part in zip(plain, rows, strict=True):
            member.update(_rows(part, 0))

    floor = Floor(bench.rates().seconds_of(count_work(lambda: learner.update(together, [piece]))), _FLOOR)
    variants = [
        Local(OURS, lambda: learner.update(together, [piece]), bench.device, warmup=5),
        Local(_STACKS_OF_ONE, loop, bench.device, warmup=2),
        Local(_PLAIN, plain_loop, bench.device, warmup=2),
    ]
    return compare(bench, row, variants, floor, {"member updates/s": MEMBERS})


def members_act(bench: Bench, row: str, hidden: int) -> list[Result]:
    """Measure one action of 16 members, each in its own environment."""
    sizes = Sizes(*_SWIMMER, hidden)
    together = Members(sizes, MEMBERS, bench.device)
    actors = [sizes.actor().to(bench.device) for _ in range(MEMBERS)]
    seen = torch.randn(MEMBERS, 1, sizes.observation, device=bench.device)

    @torch.no_grad()
    def stacked() -> None:
        together.act(together.networks["actor"], seen)

    @torch.no_grad()
    def loop() -> None:
        for actor, own in zip(actors, seen, strict=True):
            actor(own)

    floor = Floor(bench.rates().seconds_of(count_work(stacked)), _FLOOR)
    variants = [
        Local(OURS, stacked, bench.device, warmup=20),
        Local(_PLAIN, loop, bench.device, warmup=20),
    ]
    return compare(bench, row, variants, floor, {"agent steps/s": MEMBERS})


class _PlainMember:
    """Standard TD3 for a single agent."""

    def __init__(self, sizes: Sizes, config: TD3Config, device: torch.device) -> None:
        self.config = config
        self.actor, self.critic = sizes.actor().to(device), sizes.critic().to(device)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), config.actor_learning_rate)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), config.critic_learning_rate)

    def update(self, piece: Microbatch) -> None:
        """Update all networks once."""
        config, clip = self.config, self.config.target_noise_clip
        with torch.no_grad():
            noise = (config.target_noise * piece.noise).clamp(-clip, clip)
            action = (self.target_actor(piece.next_observation) + noise).clamp(-1, 1)
            future = self.target_critic(piece.next_observation, action).amin(-1)
            target = piece.reward + config.discount * torch.where(piece.is_terminal, 0.0, future)
        first, second = self.critic(piece.observation, piece.action).unbind(-1)
        _step(self.critic_optimizer, F.mse_loss(first, target) + F.mse_loss(second, target))
        chosen = self.critic(piece.observation, self.actor(piece.observation))
        _step(self.actor_optimizer, -chosen[..., 0].mean())
        _follow(self.target_actor, self.actor, config.tau)
        _follow(self.target_critic, self.critic, config.tau)


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def _follow(slow: nn.Module, fast: nn.Module, rate: float) -> None:
    for mine, theirs in zip(slow.parameters(), fast.parameters(), strict=True):
        mine.lerp_(theirs, rate)


def _piece(sizes: Sizes, device: torch.device) -> Microbatch:
    shape = (MEMBERS, _BATCH)
    seen, action = (torch.randn(*shape, width, device=device) for width in (sizes.observation, sizes.action))
    return Microbatch(
        observation=seen,
        action=action.clamp(-1, 1),
        reward=torch.randn(shape, device=device),
        next_observation=seen + 0.1,
        is_terminal=torch.zeros(shape, dtype=torch.bool, device=device),
        noise=torch.randn_like(action),
    )


def _rows(piece: Microbatch, rows: slice | int) -> Microbatch:
    fields = ("observation", "action", "reward", "next_observation", "is_terminal", "noise")
    return Microbatch(*(getattr(piece, name)[rows] for name in fields))
