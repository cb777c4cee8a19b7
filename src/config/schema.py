"""The settings that all runs share. `dreamer.py` and `population.py` each add the settings of a workflow.

Each component defines its own settings. This module defines the run's settings and checks how they relate.
"""

import math
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

from ..buffers import ReplayConfig, ReplayStorage
from ..envs import EnvConfig
from ..memory.config import MemoryConfig
from ..utils.errors import UserError, require_package, require_range, require_seed
from ..utils.logging.config import ProgressMode, WandbMode
from ..utils.remote_urls import check_url

LARGEST_NUMBER = 1e30
MOST_NAME_BYTES = 230

MOST_THREADS = 1024
LEAST_OBJECT_STORE_MIB = 80
"""Minimum size of an object store in MiB. Ray rejects sizes below 75 MiB."""

NO_SETTING = {"omegaconf_ignore": True}
"""Metadata for a field that users cannot set. Such a field is neither composed nor saved."""


class WorkflowName(Enum):
    """Type of training: one agent with a world model, or evolving learners with a shared replay."""

    dreamer = "dreamer"
    population = "population"


class Device(Enum):
    """Device of the networks. OmegaConf matches members by name, so these are the names that users type."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class WhichCheckpoint(Enum):
    """Checkpoint of a run: the newest one, or the one with the best evaluation (or fitness) so far."""

    newest = "newest"
    best = "best"


class Precision(Enum):
    """Number format of matrix products. Parameters, norms and losses are always float32."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Compile(Enum):
    """Execution mode of the networks."""

    auto = "auto"
    """`inductor` for a long run, otherwise `graph` on CUDA and `none` on a CPU."""
    none = "none"
    inductor = "inductor"
    graph = "graph"


@dataclass(kw_only=True, slots=True)
class TrainingConfig:
    """Length, batches and checkpoints of a run. An interval of 0 means never."""

    total_timesteps: int = 100_000
    """Agent steps of the run, summed over all environments."""

    batch_size: int = 16
    """Number of windows per update. For a population: transitions per batch."""

    learning_starts: int = 1088
    """Agent steps before the first update. For a population: records in the replay buffer."""

    checkpoint_interval: int = 10_000
    """Agent steps between checkpoints. A run also saves a checkpoint at its end."""

    keep_checkpoints: int = 2
    """Number of most recent checkpoints to keep on disk."""

    keep_best: bool = True
    """Also save and keep the checkpoint with the best evaluation, or with the best fitness of a
    population."""

    def __post_init__(self) -> None:
        names = ("total_timesteps", "batch_size", "learning_starts", "keep_checkpoints")
        require_range("training", self, *names, ge=1)
        require_range("training", self, "batch_size", le=1_000_000)
        require_range("training", self, "checkpoint_interval", ge=0)


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """Remote copies of checkpoints."""

    mirror: str | None = None
    """fsspec URL of a remote folder (s3://bucket/runs, gs://..., file:///mnt/backup) with a subfolder per
    run, or null for no copy. Credentials must be set in the environment."""

    mirror_timeout: float = 60.0
    """Maximum time in seconds that a run waits at its end for its last checkpoint to be copied."""

    def __post_init__(self) -> None:
        if self.mirror is not None:
            check_url("checkpoint.mirror", self.mirror)
        require_range("checkpoint", self, "mirror_timeout", ge=0, le=86_400)


@dataclass(kw_only=True, slots=True)
class LoggerConfig:
    """Terminal output, and loggers in addition to `metrics.jsonl`. Presets: `configs/logger/*.yaml`."""

    tensorboard: bool = True
    """Write event files for TensorBoard."""

    wandb: WandbMode = WandbMode.off
    """Send metrics to Weights & Biases. `offline` only writes files to the run folder."""

    progress: ProgressMode = ProgressMode.auto
    """Progress display on the terminal."""

    def __post_init__(self) -> None:
        if self.wandb is not WandbMode.off:
            require_package("wandb", f"logger.wandb={self.wandb.value}", ", or set logger.wandb=off")


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    """Settings of a run with any workflow. Composed configurations are always instances of a subclass."""

    name: str = "run"
    """Name of the run. Its folder is `experiments/<name>-<time>`."""

    seed: int = 0
    """Seed of every random stream of the run."""

    workflow: WorkflowName = WorkflowName.dreamer
    """Type of training. It determines the available settings."""

    device: Device = Device.auto
    """Device of the networks. `auto` means `cuda` if available, otherwise `cpu`."""

    precision: Precision = Precision.auto
    """Number format of matrix products. `auto` means `bfloat16` if the device has instructions for it,
    otherwise `float32`."""

    compile: Compile = Compile.auto
    """`none` runs in eager mode. `graph` launches each update as a CUDA graph. `inductor` compiles acting and
    the repeated parts of an update, inside a graph on CUDA. `auto` chooses by device and length."""

    threads: int | None = None
    """Number of CPU threads for the networks, from 1 to 1024. null uses `OMP_NUM_THREADS` if set, otherwise
    the fastest number in a benchmark of about a second at startup. The choice is saved with the run, and
    `resume=` keeps it."""

    deterministic: bool = False
    """Make runs on a GPU reproducible bit for bit, at the cost of slower kernels. Runs on a CPU always
    are."""

    run_dir: str | None = None
    """Folder of the run, or null for a new folder in `experiments/`."""

    resume: str | None = None
    """Run folder to resume, or the URL of its remote copy (downloaded first). Its `config.yaml` replaces all
    groups."""

    env: EnvConfig = field(default_factory=EnvConfig)
    buffer: ReplayConfig = field(default_factory=ReplayConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        require_seed(self.seed)
        require_range("", self, "threads", ge=1, le=MOST_THREADS)
        if not self.name.isprintable() or "/" in self.name or self.name[:1] in ("", "."):
            allowed = "a valid folder name that does not start with a dot"
            raise UserError(f"name must be {allowed}, got {self.name!r}.")
        if (size := len(self.name.encode())) > MOST_NAME_BYTES:
            limit = f"name must have at most {MOST_NAME_BYTES} bytes, because run folders append the time"
            raise UserError(f"{limit} and file names are limited to 255 (got {size}). Choose a shorter name.")
        for key, value in leaves(self):
            check_number(key, value)
        self._check_device()

    def _check_device(self) -> None:
        """Raise a `UserError` for settings that the device does not support."""
        needs = {
            "buffer.storage=cuda": (self.buffer.storage is ReplayStorage.cuda, "buffer.storage=ram"),
            "compile=graph": (self.compile is Compile.graph, "compile=none"),
        }
        for setting, (is_set, instead) in needs.items():
            if is_set and (device := actual_device(self.device)) is not Device.cuda:
                raise UserError(f"{setting} needs device=cuda, got device={device.value}. Set {instead}.")


def actual_device(asked: Device) -> Device:
    """Return `asked`, with `auto` resolved to `cuda` if torch finds a CUDA device."""
    if asked is Device.auto:
        # Invalid settings are reported without this slow import.
        import torch

        return Device.cuda if torch.cuda.is_available() else Device.cpu
    return asked


def is_setting(item: Field[Any]) -> bool:
    """Return whether a user can set a field."""
    return NO_SETTING.items().isdisjoint(item.metadata.items())


def leaves(section: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every setting of a config dataclass, in field order."""
    if not isinstance(section, dict):
        section = {item.name: getattr(section, item.name) for item in fields(section) if is_setting(item)}
    for name, value in section.items():
        if isinstance(value, dict) or is_dataclass(value):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def check_number(key: str, value: object) -> None:
    """Raise a `UserError` for infinities, NaN, floats above `LARGEST_NUMBER` and integers beyond 64 bits."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key} must be a finite number, got {value}.")
    if isinstance(value, float) and abs(value) > LARGEST_NUMBER:
        raise UserError(f"{key} must be at most {LARGEST_NUMBER:g}, got {value:g}.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"{key} must be below 2**63, got a number with {value.bit_length():,} bits.")
