"""What the ranks of a run agree on before each step, so that none enters a collective alone."""

import errno
from collections.abc import Callable
from typing import NamedTuple

import torch

from ...envs.episodes import Episode, EpisodeTracker
from ...utils.ranks import Ranks
from ...utils.timestep import TimeStep
from ..signals import Signals


class Agreed(NamedTuple):
    """What is the same on all ranks until the next step."""

    acted: int = 0
    """Agent steps that lead to the records at hand, over all ranks."""

    ended: int = 0
    """Episodes that end with these records."""

    stop: bool = False
    """Whether a signal asked any of them to stop."""

    save: bool = False
    """Whether a signal asked any of them for a checkpoint."""

    leak: bool = False
    """Whether any of them is certain of a leak and must stop for it."""


def agree(ranks: Ranks, time_step: TimeStep, signals: Signals, leak: bool) -> Agreed:
    """Add up what each rank knows, in one exchange."""
    acted, ended = int((~time_step.is_first).sum()), int(time_step.is_last.sum())
    own = [acted, ended, signals.stop, signals.take_save(), leak]
    acted, ended, stop, save, leaks = ranks.sum(own)
    return Agreed(int(acted), int(ended), stop > 0, save > 0, leaks > 0)


def of_all_ranks(ranks: Ranks, own: list[Episode], tracker: EpisodeTracker) -> list[Episode]:
    """Return the episodes that ended on any rank, by the numbers of their environments in the run."""
    if ranks.size == 1:
        return own
    rows = torch.full((tracker.num_envs, 3), torch.nan, dtype=torch.float64)
    first = ranks.index * tracker.num_envs
    for episode in own:
        values = [first + episode.env, episode.episode_return, episode.length]
        rows[episode.env] = torch.tensor(values, dtype=torch.float64)
    found = (row for row in ranks.gather(rows).tolist() if row[0] == row[0])  # a row of NaN is no episode
    return [Episode(int(env), value, int(length)) for env, value, length in found]


def in_turn(ranks: Ranks, action: Callable[[], None], is_turn: bool) -> None:
    """Let those ranks act whose turn it is; return once they are done.

    Raises:
        OSError: On every rank, if it was raised on one.
    """
    failure: OSError | None = None
    try:
        if is_turn:
            action()
    except OSError as error:
        failure = error
    if ranks.sum([failure is not None])[0]:
        raise failure or OSError(errno.EIO, "another rank could not write")
