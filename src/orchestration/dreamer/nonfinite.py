"""Handle non-finite updates: log them, save the batch, roll back or stop after too many in a row."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ...buffers import SequenceBatch
from ...utils.state_files import save_state
from ...utils.units import count_text
from ...workflows import UpdateOutput

NONFINITE_EXIT_CODE = 4
_MOST_FILES = 5
_LOG = logging.getLogger(__name__)


class NonFiniteGuard:
    """Counts the updates that were not applied and saves what they were made of.

    One of them costs nothing. After `max_in_a_row` the run goes back to its last checkpoint, and stops if
    that does not help. On the CPU an update is judged at once. On CUDA it is judged at the next call, after
    its flag was copied during other work, so that the device never waits; until then its batch is held.

    Args:
        run_dir: Folder of the run; batches are saved in `nonfinite/` in it, for at most 5 steps.
        max_in_a_row: This many in a row are too many.
        state: Returns the workflow's state, which is saved with the first batch. It is what made the bad
            update, for nothing was applied; on CUDA the update after it, if that was finite.
    """

    def __init__(self, run_dir: Path, max_in_a_row: int, state: Callable[[], dict[str, Any]]) -> None:
        self.folder, self.max_in_a_row, self._state = run_dir / "nonfinite", max_in_a_row, state
        self.total, self.in_a_row, self.has_rolled_back = 0, 0, False
        self._waiting: tuple[int, UpdateOutput, SequenceBatch, torch.cuda.Event | None] | None = None

    @property
    def has_too_many(self) -> bool:
        """Whether there are too many in a row: the run goes back, or stops if `has_rolled_back`."""
        return self.in_a_row >= self.max_in_a_row

    def check(self, step: int, updated: UpdateOutput, batch: SequenceBatch) -> None:
        """Judge an update and the batch it was made from, on CUDA the ones of the call before."""
        self.settle()
        copied, on_device = None, updated.finite
        if on_device.is_cuda:
            on_host = torch.empty_like(on_device, device="cpu", pin_memory=True)
            updated = replace(updated, finite=on_host.copy_(on_device, non_blocking=True))
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(on_device.device))
        self._waiting = (step, updated, batch, copied)
        if copied is None:
            self.settle()

    def settle(self) -> None:
        """Judge the update that waits: before a checkpoint, and at the end."""
        if self._waiting is None:
            return
        (step, updated, batch, copied), self._waiting = self._waiting, None
        if copied is not None:
            copied.synchronize()
        if updated.finite:
            self.in_a_row = 0
            return
        self.total += 1
        self.in_a_row += 1
        names = _nonfinite_names(updated, batch)
        first = names[0] + (f" (+{len(names) - 1} more)" if len(names) > 1 else "")
        evidence = {"step": step, "not_finite": names, "metrics": updated.metrics, "batch": asdict(batch)}
        _LOG.warning(
            "step %s: skipped update: non-finite %s; %s", f"{step:,}", first, self._save(step, evidence)
        )

    def rolled_back(self) -> None:
        """Count again from an earlier checkpoint; there is no second rollback."""
        self.in_a_row, self.has_rolled_back, self._waiting = 0, True, None

    def stop_sentence(self) -> str:
        """Return why the run ends."""
        return (
            f"{count_text(self.in_a_row, 'update')} in a row had a loss or gradient that is not finite "
            f"(training.max_consecutive_nonfinite={self.max_in_a_row}), and going back to a checkpoint "
            f"{'did not help' if self.has_rolled_back else 'is not possible'}; what was not finite, and the "
            f"batches, are in {self.folder}."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"total": self.total, "in_a_row": self.in_a_row, "has_rolled_back": self.has_rolled_back}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts of a resumed run; after a rollback the orchestrator notes that one, too.

        A run that ended by too many in a row counts from zero: whoever resumes it has changed something.
        """
        self.total, self.in_a_row, self.has_rolled_back = (state[name] for name in self.state_dict())
        if self.has_too_many:
            self.in_a_row = 0

    def _save(self, step: int, evidence: dict[str, Any]) -> str:
        """Save the evidence of a step, the first time with the workflow; return where it is, for the log."""
        listed = self.folder / f"step_{step:09d}.json"
        tensors = listed.with_suffix(".safetensors")
        saved = len(list(self.folder.glob("step_*.json")))
        if listed.exists() or saved >= _MOST_FILES:
            return f"earlier batches are in {self.folder}"
        evidence["workflow"] = None if saved else self._state()
        try:
            self.folder.mkdir(exist_ok=True)
            save_state(self.folder, listed.stem, evidence)
        except OSError as error:
            for file in (listed, tensors):
                with contextlib.suppress(OSError):
                    file.unlink()
            return f"the batch could not be saved ({error})"
        what = "batch" if saved else "batch and workflow"
        return f"{what} saved to {tensors}, all names to {listed.name}"


def _nonfinite_names(updated: UpdateOutput, batch: SequenceBatch) -> list[str]:
    """Return what is not finite in the order of computing: `batch/...`, then `loss/...`, `gradient/...`.

    The first one is the origin, except among gradients, which are listed in the order of the networks.
    """
    values = {f"batch/observation/{key}": value for key, value in batch.observation.items()}
    values |= {"batch/action": batch.action, "batch/reward": batch.reward}
    if batch.context is not None:
        values["batch/context/deter"] = batch.context.deter
    values |= {name: value for name, value in updated.metrics.items() if name.startswith("loss/")}
    norms = zip(updated.gradient_names, updated.gradient_norms.cpu(), strict=True)
    values |= {f"gradient/{name}": norm for name, norm in norms}
    return [name for name, value in values.items() if not bool(value.isfinite().all())]
