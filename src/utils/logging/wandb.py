"""Weights & Biases, a second home for metrics that has to be asked for: `logger.wandb=offline|online`.

The package comes with the extra `wandb`, and nothing of it is imported before it is asked for. While a run is
open, it keeps one helper process (`wandb-core`) and two threads; all of them end in `close`. What it writes
stays under `<run folder>/wandb`: its own defaults would also write to the user's cache folder and report its
use to its maker.
"""

import importlib.util
import os
import warnings
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from ..errors import UserError

WANDB_FOLDER = "wandb"
_PROJECT = "reverie"


class WandbMode(Enum):
    """Where metrics for Weights & Biases go; OmegaConf matches names, so the names are what users type."""

    off = "off"
    offline = "offline"
    online = "online"


def require_wandb(mode: WandbMode) -> None:
    """Check that the package is there when it is asked for, without importing it.

    Raises:
        UserError: If it is asked for and missing.
    """
    if mode is not WandbMode.off and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"logger.wandb={mode.value} needs the package wandb, which is not installed here. "
            "Run `pip install 'reverie[wandb]'`, or set logger.wandb=off."
        )


class WandbRun:
    """One W&B run in `run_dir/wandb`, named and grouped after the run folder.

    A run that is resumed becomes a further W&B run of the same group: W&B cannot take back the rows that a
    crashed run wrote after its last checkpoint. Offline runs are uploaded later with `wandb sync`.
    `WANDB_PROJECT` and `WANDB_ENTITY`, W&B's own variables, are heeded; else the project is `reverie`.

    The helper process is one for the whole process: `close` ends it for any other W&B run, too.

    Cost, wandb 0.31 on a CPU: 1 s to open; 0.5 ms for 60 scalars; 50 MB of memory for the helper process. The
    training process itself does not grow: 7 KB over 20,000 calls.

    Args:
        run_dir: The run folder, created when missing.
        mode: `offline` writes files and opens no connection; `online` also sends them to the server.

    Raises:
        UserError: If the package is missing, or `mode` is online and there is no W&B login.
        ValueError: If `mode` is off.
    """

    def __init__(self, run_dir: Path, mode: WandbMode) -> None:
        if mode is WandbMode.off:
            raise ValueError("A W&B run is offline or online, got off.")
        require_wandb(mode)
        folder = run_dir.resolve() / WANDB_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        # Read whenever a helper process or a reporter starts, so they hold as long as the run is open.
        self._environment = _Environment(
            WANDB_CACHE_DIR=str(folder / "cache"), WANDB_ERROR_REPORTING="false", WANDB_SILENT="true"
        )
        import wandb

        self._wandb: Any = wandb
        try:
            if mode is WandbMode.online:
                self._require_login()
            self._run: Any = wandb.init(
                dir=str(run_dir.resolve()),
                project=os.environ.get("WANDB_PROJECT", _PROJECT),
                name=run_dir.resolve().name,
                group=run_dir.resolve().name,
                mode=mode.value,
                settings=self._settings(),
            )
        except BaseException:
            self._end_helper()
            raise
        # The own axis: W&B's would refuse a second row of a step, and one of an earlier step.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self._media = folder / ".image.png"

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one row: `step` and the values under their tags, as a line of `metrics.jsonl`."""
        self._run.log({"step": step, **values})

    def image(self, step: int, tag: str, encoded: bytes) -> None:
        """Write an encoded PNG as it is, an animated one too: browsers animate it."""
        self._media.write_bytes(encoded)
        # Given a file, W&B copies its bytes; given pixels, it would keep the first frame alone.
        with warnings.catch_warnings():
            # It forgets to close the file of an animation.
            warnings.simplefilter("ignore", ResourceWarning)
            shown = self._wandb.Image(str(self._media))
        self._run.log({"step": step, tag: shown})
        self._media.unlink()

    def close(self) -> None:
        """Write what is left and end the helper process; a second call does nothing."""
        if self._run is None:
            return
        self._run.finish()
        self._run = None
        self._end_helper()

    def _end_helper(self) -> None:
        """End the helper process, and put the environment back."""
        self._wandb.teardown()
        self._environment.restore()

    def _settings(self) -> Any:
        """Return settings under which W&B adds no output, no counters, no code and no package list."""
        return self._wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            silent=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )

    def _require_login(self) -> None:
        """Ask for no key in the middle of a run's output: it has to be there already."""
        try:
            if self._wandb.login(prompt=False):
                return
            reason = "no login was found"
        except (self._wandb.errors.Error, OSError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"logger.wandb=online could not log in to W&B: {reason}. "
            "Run `wandb login`, or set logger.wandb=offline."
        )


class _Environment:
    """Environment variables that are set now, and put back by `restore`."""

    def __init__(self, **values: str) -> None:
        self._before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)

    def restore(self) -> None:
        """Give each variable the value it had, or none."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
