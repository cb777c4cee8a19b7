"""Settings of a population run beyond the common settings."""

# pyright: reportIncompatibleVariableOverride=false
# Sections are subclasses of the common sections, and fields are never assigned a base-class instance.

from dataclasses import dataclass, field
from enum import Enum

from ..buffers import LatentDtype, ReplayConfig, ReplayStorage
from ..envs import EnvConfig, Suite
from ..utils.errors import UserError, require_package, require_range
from ..utils.logging.config import ProgressMode
from ..workflows.population.config import PopulationConfig, TD3Config
from .schema import (
    LEAST_OBJECT_STORE_MIB,
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
    """Where members act and train: in this process, or in groups on the workers of a Ray cluster."""

    local = "local"
    ray = "ray"


@dataclass(kw_only=True, slots=True)
class RayConfig:
    """Settings of `engine=ray`."""

    address: str | None = None
    """Address of a cluster to join, or `auto` to find it. null starts a local cluster for this run."""

    workers: int = 2
    """Number of worker processes among which the members are divided."""

    object_store_mib: int = 200
    """Shared memory of a local cluster for weights and transitions in MiB."""

    def __post_init__(self) -> None:
        require_range("ray", self, "workers", ge=1)
        require_range("ray", self, "object_store_mib", ge=LEAST_OBJECT_STORE_MIB)


@dataclass(kw_only=True, slots=True)
class PopulationEnv(EnvConfig):
    """Settings of the environments. The engine determines their number."""

    num_envs: int = field(default=1, metadata=NO_SETTING)
    info: list[str] = field(default_factory=list, metadata=NO_SETTING)


@dataclass(kw_only=True, slots=True)
class PopulationReplay(ReplayConfig):
    """Settings of a replay of transitions. Each transition lies within an episode and has no latents."""

    store_latents: bool = field(default=False, metadata=NO_SETTING)
    cross_episodes: bool = field(default=False, metadata=NO_SETTING)
    newest_share: float = field(default=0.0, metadata=NO_SETTING)
    sampler: str = field(default="uniform", metadata=NO_SETTING)
    latent_every: int = field(default=1, metadata=NO_SETTING)
    latent_dtype: LatentDtype = field(default=LatentDtype.float16, metadata=NO_SETTING)


@dataclass(kw_only=True, slots=True)
class PopulationLogger(LoggerConfig):
    """Settings of the output. A population prints one block of lines per generation."""

    progress: ProgressMode = field(default=ProgressMode.plain, metadata=NO_SETTING)


@dataclass(kw_only=True)
class PopulationTraining(TrainingConfig):
    """Settings of the generations."""

    generations: int = 25
    """Number of generations, unless the run reaches `total_timesteps` earlier."""

    gradient_steps_per_generation: int = 32
    """Number of updates per member and generation."""

    gradient_accumulation_steps: int = 6
    """Number of batches per update. Their gradients are summed."""

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
    """Where a population acts and trains: in this process, or in the workers of a Ray cluster."""

    env: PopulationEnv = field(default_factory=PopulationEnv)
    buffer: PopulationReplay = field(default_factory=PopulationReplay)
    logger: PopulationLogger = field(default_factory=PopulationLogger)
    training: PopulationTraining = field(default_factory=PopulationTraining)
    population: PopulationConfig = field(default_factory=PopulationConfig)
    td3: TD3Config = field(default_factory=TD3Config)
    ray: RayConfig = field(default_factory=RayConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.env.suite is Suite.vector:
            raise UserError("workflow=population does not support env=vector. Set env=gymnasium.")
        for key, value, only in (
            ("precision", self.precision, (Precision.auto, Precision.float32)),
            ("compile", self.compile, (Compile.auto, Compile.none)),
            ("buffer.storage", self.buffer.storage, (ReplayStorage.mmap, ReplayStorage.ram)),
        ):
            if value not in only:
                repair = f"Set {key}={only[-1].value}."
                raise UserError(f"workflow=population does not support {key}={value.value}. {repair}")
        if self.engine is Engine.ray:
            self._check_ray()

    def _check_ray(self) -> None:
        """Raise a `UserError` for settings that Ray workers do not support."""
        require_package("ray", "engine=ray", ", or set engine=local")
        if actual_device(self.device) is not Device.cpu:
            raise UserError("engine=ray supports only the CPUs of its workers. Set device=cpu.")
        if self.population.size < self.ray.workers:
            size = self.population.size
            members = f"must be at most population.size={size}. Set ray.workers={size}."
            raise UserError(f"ray.workers={self.ray.workers} {members}")
