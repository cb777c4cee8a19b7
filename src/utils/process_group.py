"""Process group for data-parallel training, with heartbeats. `torchrun` starts the processes.

Collectives use gloo on a CPU or if ranks share a GPU, and NCCL between GPUs.
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

# As long as all ranks are alive, one may evaluate for hours while the others wait in a collective.
_COLLECTIVE_TIMEOUT_SECONDS = 86_400.0
_RENDEZVOUS_TIMEOUT_SECONDS = 300.0
# torchrun creates its store before it starts any rank.
_CONNECT_TIMEOUT_SECONDS = 10.0
_HEARTBEAT_SECONDS = 1.0
_ERROR_REPORT_SECONDS = 2.0
_ERROR_KEY = "error of the first rank"
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 2e-5, 0.25
# Pauses grow by this factor, so polling prolongs a collective by at most a quarter.
_PAUSE_GROWTH = 1.25


class ProcessGroup(Ranks):
    """Ranks that are connected processes.

    Args:
        index: Index of this rank.
        size: Number of ranks.
        on_machine: Number of ranks on this machine.
        on_card: Number of ranks that share this rank's GPU.
        timeout: Seconds without a response or a heartbeat after which another rank counts as lost.
        store: Store for the heartbeats of all ranks. Without it, ranks must always respond within the
            timeout.
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
        """Run a collective of `torch.distributed` to completion, or raise `RankLost`."""
        try:
            work: Work = collective(*args, **keywords, async_op=True)
            if not self._is_prompt and self._store is not None:
                self._wait_while_all_live(work, self._store)
            work.wait(timedelta(seconds=self._timeout))
        except RankLost:
            raise
        except RuntimeError as error:
            # Remove gloo's source location and advice.
            reason = re.sub(r"^\[\S+\] |\. .*", "", first_line(error))
            raise RankLost(f"rank {self.index} of {self.size} lost another rank: {reason}") from error

    def _wait_while_all_live(self, work: Work, store: Store) -> None:
        """Wait for a collective. Raise `RankLost` if a rank stops sending heartbeats."""
        seen: dict[int, tuple[bytes, float]] = dict.fromkeys(range(self.size), (b"", time.monotonic()))
        pause = _SHORTEST_PAUSE_SECONDS
        while not work.is_completed():
            time.sleep(pause)
            pause = min(_PAUSE_GROWTH * pause, _LONGEST_PAUSE_SECONDS)
            # Most collectives finish before the first check of the heartbeats.
            if pause < _LONGEST_PAUSE_SECONDS:
                continue
            for rank, (beat, since) in seen.items():
                now, new = time.monotonic(), store.get(_heartbeat_key(rank))
                seen[rank] = (beat, since) if new == beat else (new, now)
                if now - seen[rank][1] > self._timeout:
                    raise RankLost(f"rank {rank} of {self.size} sent no heartbeat for {self._timeout:g} s")


def _heartbeat_key(rank: int) -> str:
    return f"heartbeat of rank {rank}"


def _send_heartbeats(store: Store, rank: int, left: Event) -> None:
    """Send heartbeats until this rank leaves the group or its process is stopped."""
    for number in itertools.count():
        try:
            store.set(_heartbeat_key(rank), str(number))
        except RuntimeError:
            # The store's process has ended.
            return
        if left.wait(_HEARTBEAT_SECONDS):
            return


def _is_error_of_first(store: Store, text: str) -> bool:
    """Return whether the first rank raised the same error, or ended before its error could be read."""
    deadline = time.monotonic() + _ERROR_REPORT_SECONDS
    try:
        while not store.check([_ERROR_KEY]):
            if time.monotonic() > deadline:
                return False
            time.sleep(_LONGEST_PAUSE_SECONDS)
        return store.get(_ERROR_KEY).decode() == text
    except RuntimeError:
        return True


class _Gather(torch.autograd.Function):
    """See `Ranks.gather`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: ProcessGroup) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.ranks, ctx.count = ranks, len(tensor)
        # The gathered tensors have the memory layout of `own`.
        own = tensor.contiguous()
        gathered = [torch.empty_like(own) for _ in range(ranks.size)]
        ranks._do(dist.all_gather, gathered, own)
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first = ctx.ranks.index * ctx.count
        return gradient[first : first + ctx.count] * ctx.ranks.size, None


def started_ranks() -> Ranks:
    """Return the ranks that `torchrun` started, from its environment variables, or `ALONE` without torchrun.

    Until `joined` connects them, they can divide work but not exchange data. Only commands call this. All
    other code receives its ranks as an argument.
    """
    names = ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1"), ("RANK", "0")
    size, here, index = (int(os.environ.get(*name)) for name in names)
    return planned_ranks(size, here, index) if size > 1 else ALONE


def planned_ranks(size: int, on_machine: int, index: int = 0) -> Ranks:
    """Return one of `size` ranks, of which `on_machine` share this machine's GPUs evenly."""
    on_card = math.ceil(on_machine / max(1, torch.cuda.device_count()))
    return Ranks(index, size, on_machine=on_machine, on_card=on_card)


@contextmanager
def joined(started: Ranks, timeout: float) -> Iterator[Ranks]:
    """Connect the processes that `torchrun` started and yield their group, or `ALONE` for a single process.

    A `UserError` that is raised in the block on this rank but not on rank 0 becomes an `ErrorOfRank`.
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
    longest = timedelta(seconds=_COLLECTIVE_TIMEOUT_SECONDS)
    try:
        is_ready = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        seconds = _CONNECT_TIMEOUT_SECONDS if is_ready else _RENDEZVOUS_TIMEOUT_SECONDS
        store, rank, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=seconds)))
        store.set_timeout(timedelta(seconds=_RENDEZVOUS_TIMEOUT_SECONDS))
        # All restarts share one store. The prefix hides the entries of earlier processes.
        own = dist.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        own.set(f"GPU of rank {rank}", card)
        cards = [own.get(f"GPU of rank {other}").decode() for other in range(size)]
        # NCCL does not support two ranks on one GPU.
        has_own = "" not in cards and len(set(cards)) == size
        backend = "cpu:gloo,cuda:nccl" if has_own else "gloo"
        dist.init_process_group(backend, timeout=longest, world_size=size, rank=rank, store=own)
    # A `ValueError` concerns a variable that only torchrun should set.
    except (RuntimeError, ValueError) as error:
        reason = first_line(error)
        raise RankLost(
            f"rank {os.environ.get('RANK')} of {size} could not connect to the others: {reason}"
        ) from error
    left = Event()
    heartbeats = Thread(target=_send_heartbeats, args=(own, rank, left), daemon=True)
    heartbeats.start()
    try:
        yield ProcessGroup(rank, size, started.on_machine, cards.count(card), timeout, own)
    except UserError as error:
        if rank == 0:
            # The store's process may have ended.
            with suppress(RuntimeError):
                own.set(_ERROR_KEY, str(error))
        elif not _is_error_of_first(own, str(error)):
            raise ErrorOfRank(f"rank {rank}: {error}") from error
        raise
    finally:
        left.set()
        # Python aborts at exit if a thread is still inside the store.
        heartbeats.join(_HEARTBEAT_SECONDS)
    # This is skipped after an error, because destroying the group would wait for a lost rank.
    dist.destroy_process_group()
