"""The ranks of a run: division of work, and collectives.

Algorithms use the `Ranks` interface and do not depend on processes. With a single rank (`ALONE`), collectives
return their inputs. `process_group` connects the processes that `torchrun` starts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

RANK_EXIT_CODE = 8


class RankLost(RuntimeError):
    """Another rank ended or did not respond in time. Progress since the last checkpoint is lost."""


class Ranks:
    """One rank's view of all ranks of a run.

    `part`, `slice_of` and `named` divide work. All other methods are collectives: all ranks must call them in
    the same order. In this class, they work for a single rank and fail for several. The subclass
    `ProcessGroup` connects several ranks.

    Args:
        index: Index of this rank. Rank 0 writes everything that a run writes once.
        size: Number of ranks.
        on_machine: Number of ranks that share this rank's machine, with its memory and disk.
        on_card: Number of ranks that share this rank's GPU, if it has one.
    """

    def __init__(self, index: int = 0, size: int = 1, on_machine: int = 1, on_card: int = 1) -> None:
        self.index, self.size, self.on_machine, self.on_card = index, size, on_machine, on_card

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0. It writes all output that a run writes once."""
        return self.index == 0

    def part(self, total: int) -> int:
        """Return this rank's share of a number that is divisible by `size`."""
        return total // self.size

    def slice_of(self, total: int) -> slice:
        """Return this rank's slice of `total` items. Items are numbered across all ranks."""
        return slice(self.part(total) * self.index, self.part(total) * (self.index + 1))

    def named(self, name: str) -> str:
        """Return a name for this rank's own random stream."""
        return name if self.size == 1 else f"{name} of rank {self.index} of {self.size}"

    @contextmanager
    def prompt(self) -> Iterator[None]:
        """Require responses within the timeout inside the `with` block. Elsewhere, a heartbeat is enough.

        All ranks train simultaneously, but one rank may compile, evaluate, save or plot while others wait.
        """
        yield

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return the sum of each number over all ranks, in float64."""
        self._require_one()
        return list(numbers)

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace float32 tensors on one device with their means over all ranks, in one collective."""
        self._require_one()

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, concatenated along the first axis.

        Each rank's gradient is scaled by `size`, so that `average_` of parameter gradients is correct.
        """
        self._require_one()
        return tensor

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors with rank 0's values."""
        self._require_one()

    def text_of_first(self, text: str) -> str:
        """Return the text that rank 0 passes."""
        self._require_one()
        return text

    def are_equal(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether the tensors of all ranks are bit-for-bit equal."""
        self._require_one()
        return True

    def _require_one(self) -> None:
        if self.size > 1:
            raise RuntimeError(f"rank {self.index} of {self.size} is not connected to the others")


ALONE = Ranks()
"""The rank of a run with a single process."""
