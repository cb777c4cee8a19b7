"""The recipe of a Dreamer run: what it needs, what it is made of, and who runs it."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from ...buffers import ReplaySpec
from ...checkpoints.checkpoint import Checkpoint
from ...config.dreamer import DreamerTrainConfig
from ...config.presets import preset_of
from ...config.schema import Compile, Device
from ...planning import GPU, HOST, DryRun, Row, Written
from ...planning.suggestions import halves
from ...utils.compilation import Compilations
from ...utils.progress import ProgressMode
from ...utils.timestep import EnvSpec
from ...utils.units import count_text
from ...workflows.world_models import DreamerWorkflow
from ..parts import AnyParts
from ..reports import Reports
from ..signals import Signals
from ..world_model_orchestrator import WorldModelOrchestrator
from . import dry_run, parts


class DreamerRecipe:
    """One agent with a world model."""

    has_model_presets = True
    samples_actions = True
    gpu_repair = "Ask `reverie-plan plan.fit_gib=<GiB of the card>` what fits, or lower training.batch_size"

    def check(self, config: DreamerTrainConfig, env: EnvSpec) -> None:
        """Accept every environment that `spec_of` accepts."""

    def replay_spec(self, config: DreamerTrainConfig, env: EnvSpec) -> ReplaySpec:
        """Return everything that the size of the replay depends on."""
        return parts.replay_spec(config, env)

    def least_capacity(self, config: DreamerTrainConfig, env: EnvSpec) -> int:
        """Return the records of one window in every environment."""
        return config.env.num_envs * (config.training.sequence_length + 1)

    def dry_run(self, config: DreamerTrainConfig, env: EnvSpec) -> DryRun:
        """Return what the networks and their updates hold; allocates nothing."""
        return dry_run.dry_run(config, env)

    def host_rows(self, config: DreamerTrainConfig, env: EnvSpec) -> list[Row]:
        """Return no further rows."""
        return []

    def num_environments(self, config: DreamerTrainConfig) -> int:
        """Return the number of environments."""
        return config.env.num_envs

    def written(self, config: DreamerTrainConfig, env: EnvSpec) -> Written:
        """Return what is written to disk until the end."""
        training, steps = config.training, config.training.total_timesteps
        snapshots = config.memory.snapshot_interval if config.device is Device.cuda else 0
        return Written(
            records_per_save=config.env.num_envs,
            has_best=training.evaluation_interval > 0,
            log_lines=steps // training.log_interval,
            videos=steps // training.video_interval + 1 if training.video_interval else 0,
            snapshots=steps // snapshots if snapshots else 0,
        )

    def smaller(self, config: DreamerTrainConfig, over: set[str]) -> Iterator[Iterable[str]]:
        """Yield shorter windows."""
        if GPU in over or (HOST in over and config.device is Device.cpu):
            yield (f"training.sequence_length={size}" for size in halves(config.training.sequence_length, 8))

    def model_name(self, config: DreamerTrainConfig) -> str:
        """Return the preset of `configs/model` that has the model's sizes, or `own size` if none has."""
        return preset_of(asdict(config.model)) or "own size"

    def banner_lines(self, config: DreamerTrainConfig, env: EnvSpec) -> dict[str, str]:
        """Return how long and how much Dreamer learns."""
        training = config.training
        frames = training.total_timesteps * env.action_repeat
        batch = f"{training.batch_size} windows of {training.sequence_length} steps"
        lines = {
            "length": f"{training.total_timesteps:,} agent steps = {frames:,} frames",
            "updates": _updates(config, env.action_repeat),
            "batch": f"{batch} = {training.batch_size * training.sequence_length:,} trained steps per update",
        }
        if training.warmup_steps:
            lines["warm-up"] = f"world model only for the first {training.warmup_steps:,} agent steps"
        return lines

    def progress(self, config: DreamerTrainConfig) -> ProgressMode:
        """Return how the terminal shows progress."""
        return config.logger.progress

    def build(self, config: DreamerTrainConfig, run_dir: Path) -> AnyParts:
        """Return the parts of a run; seeds the global generators."""
        return parts.build_dreamer(config, run_dir)

    def build_agent(self, config: DreamerTrainConfig, env: EnvSpec) -> DreamerWorkflow:
        """Return the agent, its parameters initialised."""
        return parts.build_workflow(config, env)

    def orchestrator(
        self,
        config: DreamerTrainConfig,
        run_parts: AnyParts,
        reports: Reports,
        run_dir: Path,
        signals: Signals,
        checkpoint: Checkpoint | None,
    ) -> WorldModelOrchestrator:
        """Return the run, ready to begin or to continue."""
        compilations = Compilations(reports.note) if config.compile is Compile.inductor else None
        return WorldModelOrchestrator(config, run_parts, reports, run_dir, signals, checkpoint, compilations)


def _updates(config: DreamerTrainConfig, action_repeat: int) -> str:
    """Return "1 update per 8 agent steps = 32 frames, 12,365 updates in total, from step 1,088"."""
    training = config.training
    per_step = training.updates_per_step
    total = (
        f"{count_text(training.planned_updates, 'update')} in total, from step {training.learning_starts:,}"
    )
    if per_step > 1:
        return f"{per_step:g} updates per agent step = {count_text(action_repeat, 'frame')}, {total}"
    every = count_text(1 / per_step, "agent step")
    return f"1 update per {every} = {count_text(action_repeat / per_step, 'frame')}, {total}"
