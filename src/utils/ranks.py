"""The processes that train one agent together: what they add up, gather and agree on.

`torchrun` starts them and tells each who it is; `torch.distributed` carries what they exchange, by gloo on a
CPU and where ranks share a GPU, and by NCCL between GPUs. All methods but `part`, `slice_of`, `named` and
`prompt` are collectives: all ranks call them, in the same order. For a process alone (`ALONE`) each returns
what it was given.
"""

import hashlib
import itertools
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, Work

from .environment_variables import environment_variables
from .errors import ErrorOfRank, UserError, first_line

RANK_EXIT_CODE = 8
_LONGEST_SECONDS = 86_400.0  # of an exchange: while all live, one may evaluate and the others wait
_SECONDS_TO_MEET = 300.0
_SECONDS_TO_CONNECT = 10.0  # to torchrun's store, which is there before any rank
_SECONDS_BETWEEN_SIGNS = 1.0
_SECONDS_TO_SAY = 2.0
_ERROR = "error of the first rank"
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 2e-5, 0.25
_LONGER = 1.25  # each pause than the one before: the end of an exchange is noticed a quarter too late at most


class RankLost(RuntimeError):
    """Another rank ended, or did not answer in time; what was learned since the checkpoint is lost."""


class Ranks:
    """All processes of a run, as one of them sees them.

    Args:
        index: Which of them this is; 0 writes what a run writes once.
        size: How many there are.
        timeout: Seconds without an answer, or a sign of life, after which another rank counts as lost.
        store: Where each rank leaves signs of life. None: answers are due at all times.
        on_card: How many of them share this one's GPU, if they have one.
    """

    def __init__(
        self,
        index: int = 0,
        size: int = 1,
        timeout: float = 20.0,
        store: Store | None = None,
        on_card: int = 1,
    ) -> None:
        self.index, self.size, self._timeout, self._store = index, size, timeout, store
        self.on_card = on_card
        self._is_prompt = store is None

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once."""
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
        before, self._is_prompt = self._is_prompt, True
        try:
            yield
        finally:
            self._is_prompt = before

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return the sum of each number over all ranks, added up in float64."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        self._do(dist.all_reduce, values)
        return values.tolist()

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace float32 tensors on one device by their means over all ranks, in one exchange."""
        if self.size == 1:
            return
        bucket = torch.cat([tensor.flatten() for tensor in tensors])
        self._do(dist.all_reduce, bucket)
        pieces = bucket.div_(self.size).split([tensor.numel() for tensor in tensors])
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all ranks, one behind the other along the first axis.

        The gradient is that of the mean over ranks of what each makes of the result, as `average_` needs it.
        """
        return tensor if self.size == 1 else _Gather.apply(tensor, self)  # pyright: ignore[reportReturnType]

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of the first rank."""
        for tensor in tensors if self.size > 1 else ():
            self._do(dist.broadcast, tensor.detach(), src=0)

    def text_of_first(self, text: str) -> str:
        """Return the text that the first rank gives."""
        if self.size == 1:
            return text
        letters = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = torch.tensor([len(letters)])
        self._do(dist.broadcast, length, src=0)
        if not self.is_first:
            letters = torch.zeros(int(length), dtype=torch.uint8)
        self._do(dist.broadcast, letters, src=0)
        return letters.numpy().tobytes().decode()

    def are_equal(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether all ranks hold the same numbers, bit by bit."""
        if self.size == 1:
            return True
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
        own = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8).unsqueeze(0)
        return bool((self.gather(own) == own).all())

    def _do(self, collective: Any, *args: Any, **keywords: Any) -> None:
        """Run a collective of `torch.distributed` to its end, or raise `RankLost`."""
        try:
            work: Work = collective(*args, **keywords, async_op=True)
            if not self._is_prompt and self._store is not None:
                self._wait_while_all_live(work, self._store)
            work.wait(timedelta(seconds=self._timeout))
        except RankLost:
            raise
        except RuntimeError as error:
            reason = re.sub(r"^\[\S+\] |\. .*", "", first_line(error))  # without gloo's file and its advice
            raise RankLost(f"rank {self.index} of {self.size} lost another one: {reason}") from error

    def _wait_while_all_live(self, work: Work, store: Store) -> None:
        """Return when the work is done, or raise `RankLost` for a rank without a sign of life."""
        seen: dict[int, tuple[bytes, float]] = dict.fromkeys(range(self.size), (b"", time.monotonic()))
        pause = _SHORTEST_PAUSE_SECONDS
        while not work.is_completed():
            time.sleep(pause)
            pause = min(_LONGER * pause, _LONGEST_PAUSE_SECONDS)
            if pause < _LONGEST_PAUSE_SECONDS:  # most exchanges end sooner
                continue
            for rank, (sign, since) in seen.items():
                now, new = time.monotonic(), store.get(_sign_of(rank))
                seen[rank] = (sign, since) if new == sign else (new, now)
                if now - seen[rank][1] > self._timeout:
                    raise RankLost(
                        f"rank {rank} of {self.size} gives no sign of life for {self._timeout:g} s"
                    )


def _sign_of(rank: int) -> str:
    return f"sign of life of rank {rank}"


def _live(store: Store, rank: int, left: Event) -> None:
    """Leave signs of life until this rank has left, or its process is stopped."""
    for number in itertools.count():
        try:
            store.set(_sign_of(rank), str(number))
        except RuntimeError:  # whoever keeps the store has ended
            return
        if left.wait(_SECONDS_BETWEEN_SIGNS):
            return


def _says(store: Store, text: str) -> bool:
    """Return whether the first rank ends with the same error, or has ended before this could be asked."""
    deadline = time.monotonic() + _SECONDS_TO_SAY
    try:
        while not store.check([_ERROR]):
            if time.monotonic() > deadline:
                return False
            time.sleep(_LONGEST_PAUSE_SECONDS)
        return store.get(_ERROR).decode() == text
    except RuntimeError:
        return True


class _Gather(torch.autograd.Function):
    """`Ranks.gather`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.ranks, ctx.count = ranks, len(tensor)
        own = tensor.contiguous()  # what is gathered takes its layout in memory from here
        gathered = [torch.empty_like(own) for _ in range(ranks.size)]
        ranks._do(dist.all_gather, gathered, own)
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first = ctx.ranks.index * ctx.count
        return gradient[first : first + ctx.count] * ctx.ranks.size, None


ALONE = Ranks()
"""A process that trains by itself."""


_current = ALONE


def current_ranks() -> Ranks:
    """Return the ranks that this process has joined, as `torch.distributed` knows one group a process."""
    return _current


def number_of_ranks() -> int:
    """Return how many processes `torchrun` has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def ranks_on_this_machine() -> int:
    """Return how many of them share this machine's memory and disk."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def ranks_on_this_card() -> int:
    """Return how many of them share a GPU here: more than 1 if this machine has fewer GPUs than ranks."""
    if _current.size > 1:
        return _current.on_card
    return math.ceil(ranks_on_this_machine() / max(1, torch.cuda.device_count()))


def as_if_started(size: int, here: int) -> AbstractContextManager[None]:
    """Count this process as one of `size` ranks, `here` of them on this machine: for a plan alone."""
    return environment_variables({"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(here)})


@contextmanager
def joined(timeout: float) -> Iterator[Ranks]:
    """Join the other processes that `torchrun` has started, or yield `ALONE` if it has started no other.

    A `UserError` inside that the first rank does not raise as well becomes an `ErrorOfRank`.
    """
    if (size := number_of_ranks()) == 1:
        yield ALONE
        return
    card = ""
    if torch.cuda.is_available():
        index = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
        torch.cuda.set_device(index)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        card = f"GPU {index} of {visible} of machine {os.environ.get('GROUP_RANK', '0')}"
    longest = timedelta(seconds=_LONGEST_SECONDS)
    try:
        is_ready = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        connecting = timedelta(seconds=_SECONDS_TO_CONNECT if is_ready else _SECONDS_TO_MEET)
        store, rank, _ = next(dist.rendezvous("env://", timeout=connecting))
        store.set_timeout(timedelta(seconds=_SECONDS_TO_MEET))
        # One store serves all restarts: without a name of its own, a process would look for one that is gone.
        own = dist.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        own.set(f"GPU of rank {rank}", card)
        cards = [own.get(f"GPU of rank {other}").decode() for other in range(size)]
        has_own = "" not in cards and len(set(cards)) == size  # NCCL refuses two ranks on one GPU
        backend = "cpu:gloo,cuda:nccl" if has_own else "gloo"
        dist.init_process_group(backend, timeout=longest, world_size=size, rank=rank, store=own)
    except (RuntimeError, ValueError) as error:  # of a value that torchrun sets, and nobody else should
        reason = first_line(error)
        raise RankLost(
            f"rank {os.environ.get('RANK')} of {size} did not find the others: {reason}"
        ) from error
    global _current
    _current = Ranks(rank, size, timeout, own, cards.count(card))
    left = Event()
    signs = Thread(target=_live, args=(own, rank, left), daemon=True)
    signs.start()
    try:
        yield _current
    except UserError as error:
        if rank == 0:
            with suppress(RuntimeError):  # whoever keeps the store has ended
                own.set(_ERROR, str(error))
        elif not _says(own, str(error)):
            raise ErrorOfRank(f"rank {rank}: {error}") from error
        raise
    finally:
        _current = ALONE
        left.set()
        signs.join(_SECONDS_BETWEEN_SIGNS)  # Python's end aborts a process with a thread inside the store
    dist.destroy_process_group()  # not after an error: it would wait for a rank that is lost
