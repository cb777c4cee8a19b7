"""Per-step consensus, so that all ranks enter the same collectives."""

import errno
from collections.abc import Callable
from typing import NamedTuple

import torch

from ...envs.episodes import Episode, reported
from ...utils.ranks import Ranks
from ...utils.timestep import EnvSpec, TimeStep
from ..signals import Signals


class RankConsensus(NamedTuple):
    """Values that all ranks share until the next step."""

    acted: int = 0
    """Agent steps that produced the current records, summed over all ranks."""

    ended: int = 0
    """Episodes that end with the current records, summed over all ranks."""

    stop: bool = False
    """Whether a signal asked any rank to stop."""

    save: bool = False
    """Whether a signal asked any rank for a checkpoint."""

    leak: bool = False
    """Whether any rank must stop because a leak is certain."""

    finish: bool = False
    """Whether a callback or a setting ended the run on any rank."""


def agree(ranks: Ranks, time_step: TimeStep, signals: Signals, leak: bool) -> RankConsensus:
    """Combine the values of all ranks in a single collective."""
    acted, ended = int((~time_step.is_first).sum()), int(time_step.is_last.sum())
    finish = bool(signals.finish_reason)
    own = [acted, ended, signals.stop and not finish, signals.take_save(), leak, finish]
    acted, ended, stop, save, leaks, finishes = ranks.sum(own)
    return RankConsensus(int(acted), int(ended), stop > 0, save > 0, leaks > 0, finishes > 0)


def gather_episodes(ranks: Ranks, own: list[Episode], spec: EnvSpec) -> list[Episode]:
    """Return the episodes that ended on any rank, with environments numbered across the whole run."""
    if ranks.size == 1:
        return own
    rows = torch.full((spec.num_envs, 3 + len(spec.info)), torch.nan, dtype=torch.float64)
    first = ranks.index * spec.num_envs
    for episode in own:
        info = (episode.info.get(name, torch.nan) for name in spec.info)
        values = [first + episode.env, episode.episode_return, episode.length, *info]
        rows[episode.env] = torch.tensor(values, dtype=torch.float64)
    # Rows without an episode are NaN.
    found = (row for row in ranks.gather(rows).tolist() if row[0] == row[0])
    return [
        Episode(int(env), value, int(length), reported(zip(spec.info, info, strict=True)))
        for env, value, length, *info in found
    ]


def serialize_ranks(ranks: Ranks, action: Callable[[], None], is_turn: bool) -> None:
    """Run `action` on the ranks with `is_turn` set. All ranks wait until it is done.

    Raises:
        OSError: On all ranks, if `action` raised it on any rank.
    """
    failure: OSError | None = None
    try:
        if is_turn:
            action()
    except OSError as error:
        failure = error
    if ranks.sum([failure is not None])[0]:
        raise failure or OSError(errno.EIO, "another rank could not write")
