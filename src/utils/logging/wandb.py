"""Weights & Biases, a second home for metrics that has to be asked for: `logger.wandb=offline|online`.

The package comes with the extra `wandb` and is imported only when it is asked for. Everything that it writes
stays under `<run folder>/wandb`.
"""

import importlib.util
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from ..errors import UserError


class WandbMode(Enum):
    """Where metrics for Weights & Biases go; the names are what users type."""

    off = "off"
    offline = "offline"
    online = "online"


def require_wandb(mode: WandbMode) -> None:
    """Raise a `UserError` if the package is asked for and missing; it is not imported."""
    if mode is not WandbMode.off and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"logger.wandb={mode.value} needs the package wandb, which is not installed here. "
            "Run `pip install 'reverie[wandb]'`, or set logger.wandb=off."
        )


class WandbRun:
    """One W&B run in `run_dir/wandb`, named and grouped after the run folder; `mode` is not off.

    `offline` opens no connection; its files are uploaded later with `wandb sync`. A run that is resumed
    becomes a further W&B run of the same group: W&B cannot take back the rows that a crashed run wrote after
    its last checkpoint. `WANDB_PROJECT` and `WANDB_ENTITY` are heeded. `close` ends the helper process
    (`wandb-core`) and its two threads, for any other W&B run, too.

    Cost, wandb 0.31 on a CPU: 1 s to open; 0.5 ms for 60 scalars; 50 MB of memory for the helper process.

    Raises:
        UserError: If `mode` is online and there is no W&B login.
    """

    def __init__(self, run_dir: Path, mode: WandbMode) -> None:
        assert mode is not WandbMode.off
        run_dir = run_dir.resolve()
        folder = run_dir / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        with ExitStack() as closing:
            # Read whenever a helper process or a reporter starts, so they hold as long as the run is open.
            closing.enter_context(_environment({"WANDB_CACHE_DIR": str(folder / "cache"), **quiet}))
            import wandb

            closing.callback(wandb.teardown)
            if mode is WandbMode.online:
                _require_login(wandb)
            self._wandb: Any = wandb
            self._run: Any = wandb.init(
                dir=str(run_dir),
                project=os.environ.get("WANDB_PROJECT", "reverie"),
                name=run_dir.name,
                group=run_dir.name,
                mode=mode.value,
                settings=wandb.Settings(  # no output, no counters, no code and no list of packages
                    console="off",
                    disable_code=True,
                    disable_git=True,
                    silent=True,
                    x_disable_meta=True,
                    x_disable_stats=True,
                    x_save_requirements=False,
                ),
            )
            closing.callback(self._run.finish)
            # The own axis: W&B's would refuse a second row of a step, and one of an earlier step.
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")
            self._closing = closing.pop_all()
        self._media = folder / ".image.png"

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one row: `step` and the values under their tags, as a line of `metrics.jsonl`."""
        self._run.log({"step": step, **values})

    def image(self, step: int, tag: str, encoded: bytes) -> None:
        """Write an encoded PNG as it is, an animated one too: browsers animate it."""
        self._media.write_bytes(encoded)
        # Given a file, W&B copies its bytes; given pixels, it would keep the first frame alone.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # it forgets to close the file of an animation
            shown = self._wandb.Image(str(self._media))
        self._run.log({"step": step, tag: shown})
        self._media.unlink()

    def close(self) -> None:
        """Write what is left and end the helper process; a second call does nothing."""
        self._closing.close()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the `with` block."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


def _require_login(wandb: Any) -> None:
    """Raise a `UserError` if there is no login; nobody is asked for a key in the middle of a run."""
    try:
        if wandb.login(prompt=False):
            return
        reason = "no login was found"
    except (wandb.errors.Error, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
    raise UserError(
        f"logger.wandb=online could not log in to W&B: {reason}. "
        "Run `wandb login`, or set logger.wandb=offline."
    )
