"""What becomes of updates with a non-finite loss or gradient: told, kept as evidence, and not for ever.

The workflow does not apply such an update, so nothing is lost by one of them. When they come in a row the run
learns nothing more: it goes back to its last checkpoint, and if that does not help, it stops.
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...buffers import SequenceBatch
from ...utils.state_files import save_state
from ...workflows import UpdateOutput

NONFINITE_EXIT_CODE = 4
_MOST_FILES = 5
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Update:
    """An update whose flag is on its way to the host."""

    step: int
    updated: UpdateOutput
    batch: SequenceBatch
    is_finite: Tensor
    """0-d bool in host memory, once `copied` has happened."""

    copied: torch.cuda.Event | None


class NonFiniteGuard:
    """Looks at every update; counts those that were not applied and keeps what they were made of.

    On the CPU an update is judged at once. On CUDA it is judged at the next call, when its flag has long been
    copied beside the work: the device never runs dry for the question. Until then its batch is held.

    Args:
        run_dir: Folder of the run; evidence goes into `nonfinite/` in it, of at most 5 steps.
        max_in_a_row: So many in a row are too many.
        state: Gives the workflow's state, which is kept with the first batch. Nothing was applied, so it is
            what made the bad update; on CUDA the one after it, if that was finite.
    """

    def __init__(self, run_dir: Path, max_in_a_row: int, state: Callable[[], dict[str, Any]]) -> None:
        self.folder, self.max_in_a_row, self._state = run_dir / "nonfinite", max_in_a_row, state
        self.total, self.in_a_row, self.has_rolled_back = 0, 0, False
        self._waiting: _Update | None = None

    @property
    def has_too_many(self) -> bool:
        """Whether there are too many in a row."""
        return self.in_a_row >= self.max_in_a_row

    @property
    def wants_rollback(self) -> bool:
        """Whether there are too many in a row, for the first time."""
        return self.has_too_many and not self.has_rolled_back

    @property
    def must_stop(self) -> bool:
        """Whether there are too many in a row although the run went back once."""
        return self.has_too_many and self.has_rolled_back

    def check(self, step: int, updated: UpdateOutput, batch: SequenceBatch) -> None:
        """Judge an update and the batch it was made from, on CUDA the ones of the call before.

        Cost: nothing to speak of for a finite one; the others wait for the device and for the disk.
        """
        self.settle()
        self._waiting = _Update(step, updated, batch, *_to_host(updated.finite))
        if not updated.finite.is_cuda:
            self.settle()

    def settle(self) -> None:
        """Judge what still waits: before a checkpoint, and at the end."""
        update, self._waiting = self._waiting, None
        if update is None:
            return
        if update.copied is not None:
            update.copied.synchronize()
        if bool(update.is_finite):
            self.in_a_row = 0
        else:
            self.total += 1
            self.in_a_row += 1
            self._tell(update)

    def rolled_back(self) -> None:
        """Begin anew at an earlier checkpoint; there will be no second time."""
        self.in_a_row, self.has_rolled_back, self._waiting = 0, True, None

    def stop_sentence(self) -> str:
        """Return why the run ends."""
        return (
            f"{self.in_a_row} updates in a row had a loss or gradient that is not finite "
            f"(training.max_nonfinite={self.max_in_a_row}), and going back to a checkpoint "
            f"{'did not help' if self.has_rolled_back else 'is not possible'}; what was not finite, and the "
            f"batches, are in {self.folder}."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"total": self.total, "in_a_row": self.in_a_row, "has_rolled_back": self.has_rolled_back}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with counts of before; not for a rollback, which has to be remembered."""
        self.total, self.in_a_row = state["total"], state["in_a_row"]
        self.has_rolled_back = state["has_rolled_back"]

    def _tell(self, update: _Update) -> None:
        """Log what was not finite, the first thing by its name, and keep it with the batch."""
        names = _not_finite(update)
        others = f" (nor are {len(names) - 1} others)" if len(names) > 1 else ""
        kept = self._keep(update, names)
        _LOG.warning(
            "step %s: an update was not applied, for %s is not finite%s; %s.",
            f"{update.step:,}",
            names[0],
            others,
            kept,
        )

    def _keep(self, update: _Update, names: list[str]) -> str:
        """Write names, metrics and batch, if there is room for them; return in words where they are."""
        name = f"step_{update.step:09d}"
        files = [self.folder / f"{name}.{ending}" for ending in ("json", "safetensors")]
        kept = len(list(self.folder.glob("step_*.json")))
        if files[0].exists() or kept >= _MOST_FILES:
            return f"earlier ones are kept in {self.folder}"
        evidence = {
            "step": update.step,
            "not_finite": names,
            "metrics": update.updated.metrics,
            "batch": _nest(update.batch),
            "workflow": self._state() if not kept else None,  # it is large, and changes little
        }
        try:
            self.folder.mkdir(exist_ok=True)
            save_state(self.folder, name, evidence)
        except OSError as error:
            for file in files:
                with contextlib.suppress(OSError):
                    file.unlink()
            return f"the batch could not be kept ({error})"
        what = "the batch is" if kept else "batch and workflow are"
        return f"{what} kept in {files[1]}, all names in {files[0].name}"


def _to_host(flag: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Return the flag in host memory and the event after which it can be read; nothing waits here."""
    if not flag.is_cuda:
        return flag, None
    host = torch.empty_like(flag, device="cpu", pin_memory=True)
    host.copy_(flag, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(flag.device))
    return host, copied


def _not_finite(update: _Update) -> list[str]:
    """Return what is not finite in the order of computing: `batch/...`, then `loss/...`, `gradient/...`.

    The first one is the origin, but among gradients, which all are listed in the order of the networks.
    """
    batch, updated = update.batch, update.updated
    inputs = {f"batch/observation/{key}": value for key, value in batch.observation.items()}
    inputs |= {"batch/action": batch.action, "batch/reward": batch.reward}
    if batch.context is not None:
        inputs["batch/context/deter"] = batch.context.deter
    losses = {name: value for name, value in updated.metrics.items() if name.startswith("loss/")}
    bad = (~updated.gradient_norms.isfinite()).tolist()
    return [
        *(name for name, value in (inputs | losses).items() if not bool(value.isfinite().all())),
        *(f"gradient/{name}" for name, is_bad in zip(updated.gradient_names, bad, strict=True) if is_bad),
    ]


def _nest(batch: SequenceBatch) -> dict[str, Any]:
    context, positions = batch.context, batch.positions
    return {
        "observation": batch.observation,
        "action": batch.action,
        "reward": batch.reward,
        "is_first": batch.is_first,
        "is_last": batch.is_last,
        "is_terminal": batch.is_terminal,
        "context": None if context is None else {"deter": context.deter, "stoch": context.stoch},
        "positions": {"env": positions.env, "start": positions.start},
    }
