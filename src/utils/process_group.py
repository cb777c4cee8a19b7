"""The processes that train one agent together: `torchrun` starts them and tells each who it is.

`torch.distributed` carries what they exchange, by gloo on a CPU and where ranks share a GPU, and by NCCL
between GPUs.
"""

import hashlib
import itertools
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, Work

from .errors import ErrorOfRank, UserError, first_line
from .ranks import ALONE, RankLost, Ranks

_LONGEST_SECONDS = 86_400.0  # of an exchange: while all live, one may evaluate and the others wait
_SECONDS_TO_MEET = 300.0
_SECONDS_TO_CONNECT = 10.0  # to torchrun's store, which is there before any rank
_SECONDS_BETWEEN_SIGNS = 1.0
_SECONDS_TO_SAY = 2.0
_ERROR = "error of the first rank"
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 2e-5, 0.25
_LONGER = 1.25  # each pause than the one before: the end of an exchange is noticed a quarter too late at most


class ProcessGroup(Ranks):
    """Ranks that are processes, and have met.

    Args:
        index: See `Ranks`, as for `size`, `on_machine` and `on_card`.
        size: How many there are.
        on_machine: How many are on this machine.
        on_card: How many share this one's GPU.
        timeout: Seconds without an answer, or a sign of life, after which another rank counts as lost.
        store: Where each rank leaves signs of life. None: answers are due at all times.
    """

    def __init__(
        self,
        index: int,
        size: int,
        on_machine: int = 1,
        on_card: int = 1,
        timeout: float = 20.0,
        store: Store | None = None,
    ) -> None:
        super().__init__(index, size, on_machine, on_card)
        self._timeout, self._store, self._is_prompt = timeout, store, store is None

    @contextmanager
    def prompt(self) -> Iterator[None]:
        """See `Ranks.prompt`."""
        before, self._is_prompt = self._is_prompt, True
        try:
            yield
        finally:
            self._is_prompt = before

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """See `Ranks.sum`."""
        values = torch.tensor(numbers, dtype=torch.float64)
        self._do(dist.all_reduce, values)
        return values.tolist()

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """See `Ranks.average_`."""
        bucket = torch.cat([tensor.flatten() for tensor in tensors])
        self._do(dist.all_reduce, bucket)
        pieces = bucket.div_(self.size).split([tensor.numel() for tensor in tensors])
        for tensor, piece in zip(tensors, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))

    def gather(self, tensor: Tensor) -> Tensor:
        """See `Ranks.gather`."""
        return _Gather.apply(tensor, self)  # pyright: ignore[reportReturnType]

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """See `Ranks.broadcast_`."""
        for tensor in tensors:
            self._do(dist.broadcast, tensor.detach(), src=0)

    def text_of_first(self, text: str) -> str:
        """See `Ranks.text_of_first`."""
        letters = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = torch.tensor([len(letters)])
        self._do(dist.broadcast, length, src=0)
        if not self.is_first:
            letters = torch.zeros(int(length), dtype=torch.uint8)
        self._do(dist.broadcast, letters, src=0)
        return letters.numpy().tobytes().decode()

    def are_equal(self, tensors: Sequence[Tensor]) -> bool:
        """See `Ranks.are_equal`."""
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
    """See `Ranks.gather`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: ProcessGroup) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.ranks, ctx.count = ranks, len(tensor)
        own = tensor.contiguous()  # what is gathered takes its layout in memory from here
        gathered = [torch.empty_like(own) for _ in range(ranks.size)]
        ranks._do(dist.all_gather, gathered, own)
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first = ctx.ranks.index * ctx.count
        return gradient[first : first + ctx.count] * ctx.ranks.size, None


def started_ranks() -> Ranks:
    """Return the processes that `torchrun` has started, from its environment variables; `ALONE` without it.

    They have not met: until `joined` they can divide numbers, but not exchange anything. Only commands ask;
    all else is given its ranks.
    """
    names = ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1"), ("RANK", "0")
    size, here, index = (int(os.environ.get(*name)) for name in names)
    return planned_ranks(size, here, index) if size > 1 else ALONE


def planned_ranks(size: int, on_machine: int, index: int = 0) -> Ranks:
    """Return one of `size` ranks, `on_machine` of them here, where they share the GPUs evenly."""
    on_card = math.ceil(on_machine / max(1, torch.cuda.device_count()))
    return Ranks(index, size, on_machine=on_machine, on_card=on_card)


@contextmanager
def joined(started: Ranks, timeout: float) -> Iterator[Ranks]:
    """Let the processes that `torchrun` has started meet, and yield them; one alone is `ALONE`.

    A `UserError` inside that the first rank does not raise as well becomes an `ErrorOfRank`.
    """
    if (size := started.size) == 1:
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
    left = Event()
    signs = Thread(target=_live, args=(own, rank, left), daemon=True)
    signs.start()
    try:
        yield ProcessGroup(rank, size, started.on_machine, cards.count(card), timeout, own)
    except UserError as error:
        if rank == 0:
            with suppress(RuntimeError):  # whoever keeps the store has ended
                own.set(_ERROR, str(error))
        elif not _says(own, str(error)):
            raise ErrorOfRank(f"rank {rank}: {error}") from error
        raise
    finally:
        left.set()
        signs.join(_SECONDS_BETWEEN_SIGNS)  # Python's end aborts a process with a thread inside the store
    dist.destroy_process_group()  # not after an error: it would wait for a rank that is lost
