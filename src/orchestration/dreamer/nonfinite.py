"""Handle non-finite updates: log them, save their batches, and roll back or stop after too many."""

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
    """Counts skipped non-finite updates and saves their batches.

    A single skipped update is harmless. After `max_in_a_row` consecutive ones, the run returns to its last
    checkpoint, and stops if that does not help. On a CPU an update is checked immediately. On CUDA its flag
    is copied asynchronously and checked at the next call, so the device never waits. The batch is kept until
    then.

    Args:
        run_dir: Run folder. Batches from at most 5 steps are saved in its `nonfinite/`.
        max_in_a_row: Maximum number of consecutive skipped updates.
        state: Returns the workflow's state, which is saved with the first batch. This is the state before the
            skipped update. On CUDA it also includes the following update if that was finite.
    """

    def __init__(self, run_dir: Path, max_in_a_row: int, state: Callable[[], dict[str, Any]]) -> None:
        self.folder, self.max_in_a_row, self._state = run_dir / "nonfinite", max_in_a_row, state
        self.total, self.in_a_row, self.has_rolled_back = 0, 0, False
        self._waiting: tuple[int, UpdateOutput, SequenceBatch, torch.cuda.Event | None] | None = None

    @property
    def has_too_many(self) -> bool:
        """Whether the limit is reached. The run then rolls back, or stops if `has_rolled_back`."""
        return self.in_a_row >= self.max_in_a_row

    def check(self, step: int, updated: UpdateOutput, batch: SequenceBatch) -> None:
        """Check an update and its batch. On CUDA, check the update and batch of the previous call."""
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

    def settle(self) -> int:
        """Check the pending update. Return the number of consecutive skipped updates until now."""
        if self._waiting is None:
            return self.in_a_row
        (step, updated, batch, copied), self._waiting = self._waiting, None
        if copied is not None:
            copied.synchronize()
        if updated.finite:
            self.in_a_row = 0
            return 0
        self.total += 1
        self.in_a_row += 1
        names = _nonfinite_names(updated, batch)
        first = names[0] + (f" (+{len(names) - 1} more)" if len(names) > 1 else "")
        evidence = {"step": step, "not_finite": names, "metrics": updated.metrics, "batch": asdict(batch)}
        _LOG.warning(
            "step %s: skipped update: non-finite %s; %s", f"{step:,}", first, self._save(step, evidence)
        )
        return self.in_a_row

    def rolled_back(self) -> None:
        """Reset the counts after a rollback. A run rolls back only once."""
        self.in_a_row, self.has_rolled_back, self._waiting = 0, True, None

    def stop_sentence(self) -> str:
        """Return the reason for stopping."""
        return (
            f"{count_text(self.in_a_row, 'update')} in a row had a non-finite loss or gradient "
            f"(training.max_consecutive_nonfinite={self.max_in_a_row}), and rolling back to a checkpoint "
            f"{'did not help' if self.has_rolled_back else 'is not possible'}. The names of these values and "
            f"the batches are saved in {self.folder}."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"total": self.total, "in_a_row": self.in_a_row, "has_rolled_back": self.has_rolled_back}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts of a resumed run. After a rollback the orchestrator also calls `rolled_back`.

        If the run had stopped at the limit, the count restarts at zero, on the assumption that the user has
        changed something.
        """
        self.total, self.in_a_row, self.has_rolled_back = (state[name] for name in self.state_dict())
        if self.has_too_many:
            self.in_a_row = 0

    def _save(self, step: int, evidence: dict[str, Any]) -> str:
        """Save the evidence of a step, the first time also the workflow. Return the location for the log."""
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
    """Return the names of non-finite values: `batch/...`, then `loss/...`, then `gradient/...`.

    This is the order of computation, so the first name is the origin. Gradients are in network order instead.
    """
    values = {f"batch/observation/{key}": value for key, value in batch.observation.items()}
    values |= {"batch/action": batch.action, "batch/reward": batch.reward}
    if batch.context is not None:
        values["batch/context/deter"] = batch.context.deter
    values |= {name: value for name, value in updated.metrics.items() if name.startswith("loss/")}
    norms = zip(updated.gradient_names, updated.gradient_norms.cpu(), strict=True)
    values |= {f"gradient/{name}": norm for name, norm in norms}
    return [name for name, value in values.items() if not bool(value.isfinite().all())]
