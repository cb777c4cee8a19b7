"""What every run reads, as one dataclass; `dreamer.py` and `population.py` add what one workflow reads.

The settings of a part are next to the part; here are those of the run itself and the relations between them.
"""

import math
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

from ..buffers import ReplayConfig, ReplayStorage
from ..envs import EnvConfig
from ..memory.config import MemoryConfig
from ..utils.errors import UserError, require_range, require_seed
from ..utils.logging import ProgressMode, WandbMode, require_wandb
from ..utils.remote_urls import check_url

LARGEST_NUMBER = 1e30
MOST_NAME_BYTES = 230

MOST_THREADS = 1024

NO_SETTING = {"omegaconf_ignore": True}
"""Metadata of a field that a user cannot set: neither composed, nor saved."""


class WorkflowName(Enum):
    """What is trained: one agent with a world model, or evolved learners that share a replay."""

    dreamer = "dreamer"
    population = "population"


class Device(Enum):
    """Where networks live; OmegaConf matches names, so the names are what users type."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(Enum):
    """Number format of the network's matrix products; parameters, norms and losses are always float32."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Compile(Enum):
    """How the networks' operators are run."""

    auto = "auto"
    """`inductor` for a long run, else `graph` on CUDA and `none` on a CPU."""
    none = "none"
    inductor = "inductor"
    graph = "graph"


@dataclass(kw_only=True, slots=True)
class TrainingConfig:
    """Length, batches and checkpoints of a run; an interval of 0 is never."""

    total_timesteps: int = 100_000
    """Agent steps of the run, over all environments together."""

    batch_size: int = 16
    """Windows per update; for a population, transitions per batch."""

    learning_starts: int = 1088
    """Agent steps before the first update; for a population, records in the replay."""

    checkpoint_interval: int = 10_000
    """Agent steps between checkpoints; the end of a run always leaves one."""

    keep_checkpoints: int = 2
    """Newest checkpoints kept on disk."""

    def __post_init__(self) -> None:
        names = ("total_timesteps", "batch_size", "learning_starts", "keep_checkpoints")
        require_range("training", self, *names, ge=1)
        require_range("training", self, "batch_size", le=1_000_000)
        require_range("training", self, "checkpoint_interval", ge=0)


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """Where checkpoints are copied to."""

    mirror: str | None = None
    """URL of a remote folder, as fsspec writes them (s3://bucket/runs, gs://..., file:///mnt/backup); each
    run has a folder in it. null for no copy. Credentials come from the environment alone."""

    mirror_timeout: float = 60.0
    """Most seconds that the end of a run waits for the copy of its last checkpoint, from 0 to a day."""

    def __post_init__(self) -> None:
        if self.mirror is not None:
            check_url("checkpoint.mirror", self.mirror)
        require_range("checkpoint", self, "mirror_timeout", ge=0, le=86_400)


@dataclass(kw_only=True, slots=True)
class LoggerConfig:
    """Settings of what a run shows, and writes next to `metrics.jsonl`; `configs/logger/*.yaml` sets them."""

    tensorboard: bool = True
    """Whether event files for TensorBoard are written."""

    wandb: WandbMode = WandbMode.off
    """Whether Weights & Biases gets the metrics too; `offline` only writes files, in the run folder."""

    progress: ProgressMode = ProgressMode.auto
    """How the terminal shows progress."""

    def __post_init__(self) -> None:
        require_wandb(self.wandb)


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    """A run of any workflow; what is composed is always a subclass."""

    name: str = "run"
    """Name of the run; its folder is `experiments/<name>-<time>`."""

    seed: int = 0
    """The one seed from which every random stream of the run is derived; not negative."""

    workflow: WorkflowName = WorkflowName.dreamer
    """What is trained; it decides which settings there are."""

    device: Device = Device.auto
    """Where networks live; `auto` is `cuda` where there is one."""

    precision: Precision = Precision.auto
    """Number format of matrix products; `auto` is `bfloat16` where the device has products of it, else
    `float32`."""

    compile: Compile = Compile.auto
    """`none` runs operator by operator; `graph` launches each update as one CUDA graph; `inductor` compiles
    acting and what an update repeats, inside that graph on CUDA. `auto` decides by device and length."""

    threads: int | None = None
    """CPU threads for the networks, from 1 to 1024. null takes `OMP_NUM_THREADS`, or the fastest number in a
    benchmark of about a second at startup. The choice is saved with the run, and `resume=` keeps it."""

    deterministic: bool = False
    """Whether a run on a GPU repeats itself bit for bit, by slower kernels; on a CPU every run does."""

    run_dir: str | None = None
    """Folder of the run; null for a new folder in `experiments/`."""

    resume: str | None = None
    """Folder of an earlier run to continue, or URL of its remote copy, which is brought here first; its
    `config.yaml` takes the place of every group."""

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
            allowed = "a word that can name a folder and begins with no dot"
            raise UserError(f"name must be {allowed}, got {self.name!r}.")
        if (size := len(self.name.encode())) > MOST_NAME_BYTES:
            limit = f"name must have at most {MOST_NAME_BYTES} bytes, because a run folder adds the time"
            raise UserError(f"{limit} and file names have at most 255 (got {size}). Choose a shorter name.")
        for key, value in leaves(self):
            check_number(key, value)
        self._check_device()

    def _check_device(self) -> None:
        """Refuse what the device cannot do, wherever it is."""
        needs = {
            "buffer.storage=cuda": (self.buffer.storage is ReplayStorage.cuda, "buffer.storage=ram"),
            "compile=graph": (self.compile is Compile.graph, "compile=none"),
        }
        for setting, (is_set, instead) in needs.items():
            if is_set and (device := actual_device(self.device)) is not Device.cuda:
                raise UserError(f"{setting} needs device=cuda, got device={device.value}. Set {instead}.")


def actual_device(asked: Device) -> Device:
    """Return `asked`, with `auto` decided by whether torch sees a CUDA device."""
    if asked is Device.auto:
        import torch  # takes seconds, and a mistake in a setting is reported without it

        return Device.cuda if torch.cuda.is_available() else Device.cpu
    return asked


def is_setting(item: Field[Any]) -> bool:
    """Return whether a user can set a field."""
    return NO_SETTING.items().isdisjoint(item.metadata.items())


def leaves(section: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every single setting of a config dataclass, in the order of its fields."""
    if not isinstance(section, dict):
        section = {item.name: getattr(section, item.name) for item in fields(section) if is_setting(item)}
    for name, value in section.items():
        if isinstance(value, dict) or is_dataclass(value):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def check_number(key: str, value: object) -> None:
    """Refuse a number that is not finite, above `LARGEST_NUMBER`, or whole with more than 64 bits."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key} must be a finite number, got {value}.")
    if isinstance(value, float) and abs(value) > LARGEST_NUMBER:
        raise UserError(f"{key} must be at most {LARGEST_NUMBER:g}, got {value:g}.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"{key} must be below 2**63, got a number of {value.bit_length():,} bits.")
