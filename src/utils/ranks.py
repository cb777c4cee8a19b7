"""The ranks of a run: how they divide its work, and what they exchange.

Algorithms are written for `Ranks` and do not depend on processes. One rank alone (`ALONE`) gets back from
each exchange what it gave; `process_group` connects the processes that `torchrun` starts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

RANK_EXIT_CODE = 8


class RankLost(RuntimeError):
    """Another rank ended, or did not answer in time; what was learned since the checkpoint is lost."""


class Ranks:
    """All ranks of a run, as one of them sees them.

    `part`, `slice_of` and `named` divide. All other methods are collectives: all ranks call them, in the same
    order. Here they are those of one rank, and fail for several, which a `ProcessGroup` connects.

    Args:
        index: Which of them this is; 0 writes what a run writes once.
        size: How many there are.
        on_machine: How many of them share this one's machine, with its memory and disk.
        on_card: How many of them share this one's GPU, if they have one.
    """

    def __init__(self, index: int = 0, size: int = 1, on_machine: int = 1, on_card: int = 1) -> None:
        self.index, self.size, self.on_machine, self.on_card = index, size, on_machine, on_card

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.index == 0

    def part(self, total: int) -> int:
        """Return this rank's share of a number that `size` divides."""
        return total // self.size

    def slice_of(self, total: int) -> slice:
        """Return which of `total` things, numbered over all ranks, are this rank's."""
        return slice(self.part(total) * self.index, self.part(total) * (self.index + 1))

    def named(self, name: str) -> str:
        """Return the name of a stream of randomness that each rank has for itself."""
        return name if self.size == 1 else f"{name} of rank {self.index} of {self.size}"

    @contextmanager
    def prompt(self) -> Iterator[None]:
        """Expect answers within the timeout in here; elsewhere a sign of life is enough.

        One rank may compile, evaluate, save or draw while the others wait, but all learn at the same time.
        """
        yield

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return the sum of each number over all ranks, added up in float64."""
        self._require_one()
        return list(numbers)

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace float32 tensors on one device by their means over all ranks, in one exchange."""
        self._require_one()

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, one behind the other along the first axis.

        The gradient is that of the mean over ranks of what each makes of the result, as `average_` needs it.
        """
        self._require_one()
        return tensor

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of the first rank."""
        self._require_one()

    def text_of_first(self, text: str) -> str:
        """Return the text that the first rank gives."""
        self._require_one()
        return text

    def are_equal(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether all ranks hold the same numbers, bit by bit."""
        self._require_one()
        return True

    def _require_one(self) -> None:
        if self.size > 1:
            raise RuntimeError(f"rank {self.index} of {self.size} has not joined the others")


ALONE = Ranks()
"""A rank that trains by itself."""
