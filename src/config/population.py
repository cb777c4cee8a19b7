"""The settings of a population run: those of every run, and what only a population reads."""

# pyright: reportIncompatibleVariableOverride=false
# A section of this run is a subclass of the section of every run; nobody assigns a plain one.

from dataclasses import dataclass, field
from enum import Enum

from ..buffers import LatentDtype, ReplayConfig, ReplayStorage
from ..envs import EnvConfig
from ..utils.errors import UserError, require_range
from ..utils.logging import ProgressMode
from ..workflows.population import PopulationConfig, TD3Config
from .cluster import LEAST_OBJECT_STORE_MIB, require_ray
from .schema import (
    NO_SETTING,
    Compile,
    Device,
    LoggerConfig,
    Precision,
    TrainConfig,
    TrainingConfig,
    WorkflowName,
    actual_device,
)


class Engine(Enum):
    """Where members play and learn: in this process, or by groups in workers of a Ray cluster."""

    local = "local"
    ray = "ray"


@dataclass(kw_only=True, slots=True)
class RayConfig:
    """Settings of `engine=ray`."""

    address: str | None = None
    """`auto`, or the address of a cluster to join; null starts one here and stops it at the end."""

    workers: int = 2
    """Processes among which the members are shared out."""

    object_store_mib: int = 200
    """Shared memory through which weights and transitions travel, in MiB, of a cluster started here."""

    def __post_init__(self) -> None:
        require_range("ray", self, "workers", ge=1)
        require_range("ray", self, "object_store_mib", ge=LEAST_OBJECT_STORE_MIB)


@dataclass(kw_only=True, slots=True)
class PopulationEnv(EnvConfig):
    """Settings of the environments; the engine decides how many run at once."""

    num_envs: int = field(default=1, metadata=NO_SETTING)


@dataclass(kw_only=True, slots=True)
class PopulationReplay(ReplayConfig):
    """Settings of a replay of transitions, which lie inside one episode and have no latents."""

    store_latents: bool = field(default=False, metadata=NO_SETTING)
    cross_episodes: bool = field(default=False, metadata=NO_SETTING)
    newest_share: float = field(default=0.0, metadata=NO_SETTING)
    latent_every: int = field(default=1, metadata=NO_SETTING)
    latent_dtype: LatentDtype = field(default=LatentDtype.float16, metadata=NO_SETTING)


@dataclass(kw_only=True, slots=True)
class PopulationLogger(LoggerConfig):
    """Settings of what a run shows; a population shows lines, a block for each generation."""

    progress: ProgressMode = field(default=ProgressMode.plain, metadata=NO_SETTING)


@dataclass(kw_only=True)
class PopulationTraining(TrainingConfig):
    """Settings of the generations."""

    generations: int = 25
    """Generations of the run, unless `total_timesteps` are taken before."""

    gradient_steps_per_generation: int = 32
    """Updates of each member in a generation."""

    gradient_accumulation_steps: int = 6
    """Batches whose gradients each of these updates adds up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("generations", "gradient_steps_per_generation", "gradient_accumulation_steps")
        require_range("training", self, *names, ge=1)
        require_range("training", self, "gradient_accumulation_steps", le=1000)


@dataclass(kw_only=True)
class PopulationTrainConfig(TrainConfig):
    """A run of `workflow=population`."""

    workflow: WorkflowName = WorkflowName.population

    engine: Engine = Engine.local
    """Where a population plays and learns: in this process, or in workers of a Ray cluster."""

    env: PopulationEnv = field(default_factory=PopulationEnv)
    buffer: PopulationReplay = field(default_factory=PopulationReplay)
    logger: PopulationLogger = field(default_factory=PopulationLogger)
    training: PopulationTraining = field(default_factory=PopulationTraining)
    population: PopulationConfig = field(default_factory=PopulationConfig)
    td3: TD3Config = field(default_factory=TD3Config)
    ray: RayConfig = field(default_factory=RayConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, value, only in (
            ("precision", self.precision, (Precision.auto, Precision.float32)),
            ("compile", self.compile, (Compile.auto, Compile.none)),
            ("buffer.storage", self.buffer.storage, (ReplayStorage.mmap, ReplayStorage.ram)),
        ):
            if value not in only:
                repair = f"Set {key}={only[-1].value}."
                raise UserError(f"{key}={value.value} is not for workflow=population. {repair}")
        if self.engine is Engine.ray:
            self._check_ray()

    def _check_ray(self) -> None:
        """Refuse what workers cannot do."""
        require_ray("engine=ray", ", or set engine=local")
        if actual_device(self.device) is not Device.cpu:
            raise UserError("engine=ray computes on the CPUs of its workers. Set device=cpu.")
        if self.population.size < self.ray.workers:
            size = self.population.size
            members = f"the members of population.size={size}. Set ray.workers={size}."
            raise UserError(f"ray.workers={self.ray.workers} are more than {members}")
