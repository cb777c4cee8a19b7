"""The recipe of a population run: its checks, its plan, its parts and its orchestrator."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ...buffers import ReplaySpec
from ...checkpoints.checkpoint import Checkpoint
from ...config.population import PopulationTrainConfig
from ...config.schema import Device
from ...planning import GPU, HOST, DryRun, Row, Written
from ...planning.suggestions import halves
from ...utils.errors import UserError
from ...utils.progress import ProgressMode
from ...utils.timestep import EnvSpec
from ...utils.units import count_text
from ...workflows.population import ERLWorkflow, require_vectors
from ..orchestrator import Orchestrator
from ..parts import AnyParts
from ..reports import Reports
from ..signals import Signals
from . import dry_run, parts
from .engines.rollouts import longest_episode, num_rollouts
from .ray_rows import ray_rows, require_room


class PopulationRecipe:
    """Evolved learners that share a replay."""

    has_model_presets = False
    samples_actions = False
    gpu_repair = "Lower population.size or training.batch_size"

    def check(self, config: PopulationTrainConfig, env: EnvSpec) -> None:
        """Refuse images, and a replay that whole episodes cannot fill to the point where learning starts."""
        require_vectors(env)
        capacity, needed = config.buffer.capacity, self.least_capacity(config, env)
        if capacity < needed:
            episode, starts = longest_episode(env) + 1, config.training.learning_starts
            learning = f" and training.learning_starts={starts}" if config.population.gradient else ""
            raise UserError(
                f"buffer.capacity={capacity} has no room for an episode of {episode} records{learning}. "
                f"Set buffer.capacity={needed} or more."
            )
        require_room(config, env)

    def replay_spec(self, config: PopulationTrainConfig, env: EnvSpec) -> ReplaySpec:
        """Return everything that determines the size of the replay."""
        return parts.replay_spec(config, env)

    def least_capacity(self, config: PopulationTrainConfig, env: EnvSpec) -> int:
        """Return the records of an episode, and of what is collected before learning starts."""
        starts = config.training.learning_starts if config.population.gradient else 0
        return longest_episode(env) + 1 + starts

    def dry_run(self, config: PopulationTrainConfig, env: EnvSpec) -> DryRun:
        """Return what the members and their updates hold; allocates nothing."""
        return dry_run.dry_run(config, env)

    def host_rows(self, config: PopulationTrainConfig, env: EnvSpec) -> list[Row]:
        """Return the rows of a generation's episodes and of Ray."""
        return [dry_run.episodes_row(config, env), *ray_rows(config)]

    def num_environments(self, config: PopulationTrainConfig) -> int:
        """Return the number of environments, which play one episode each at the same time."""
        return num_rollouts(config.population)

    def written(self, config: PopulationTrainConfig, env: EnvSpec) -> Written:
        """Return the amounts that are written to disk until the end."""
        steps = dry_run.generation_steps(config, env)
        return Written(steps, has_best=True, log_lines=config.training.generations, videos=0, snapshots=0)

    def smaller(self, config: PopulationTrainConfig, over: set[str]) -> Iterator[Iterable[str]]:
        """Yield narrower networks, then fewer episodes."""
        if GPU in over or (HOST in over and config.device is Device.cpu):
            yield (f"td3.hidden_units={size}" for size in halves(config.td3.hidden_units, 16))
        if HOST in over:
            yield (f"population.episodes={count}" for count in halves(config.population.episodes, 1))

    def model_name(self, config: PopulationTrainConfig) -> str:
        """Return the number of members."""
        return f"{count_text(config.population.size, 'member')} of TD3"

    def banner_lines(self, config: PopulationTrainConfig, env: EnvSpec) -> dict[str, str]:
        """Return the lines about length, episodes, learning and evolution."""
        training, population = config.training, config.population
        explores = f", {population.num_explorers * population.exploration_episodes:,} more with noise"
        lines = {
            "length": f"{count_text(training.generations, 'generation')}, at most "
            f"{training.total_timesteps:,} agent steps",
            "play": f"{count_text(population.size * population.episodes, 'episode')} per generation"
            + (explores if population.num_explorers else ""),
            "learning": "none by gradient",
            "evolution": "none",
        }
        if population.gradient:
            transitions = training.gradient_accumulation_steps * training.batch_size
            updates = count_text(training.gradient_steps_per_generation, "update")
            lines["learning"] = (
                f"TD3, {updates} of each member per generation on {training.gradient_accumulation_steps} x "
                f"{training.batch_size} = {transitions:,} transitions"
            )
        if population.evolves:
            learner = ", the gradient learner injected" if population.has_learner else ""
            lines["evolution"] = f"{count_text(population.num_elites, 'elite')} of {population.size}{learner}"
        return lines

    def progress(self, config: PopulationTrainConfig) -> ProgressMode:
        """Return lines: the pace is in generations, and each has a block."""
        return ProgressMode.plain

    def build(self, config: PopulationTrainConfig, run_dir: Path) -> AnyParts:
        """Return the parts of a run; seeds the global generators."""
        return parts.build_population(config, run_dir)

    def build_agent(self, config: PopulationTrainConfig, env: EnvSpec) -> ERLWorkflow:
        """Return the population, its parameters initialised."""
        return parts.build_erl(config, env)

    def orchestrator(
        self,
        config: PopulationTrainConfig,
        run_parts: AnyParts,
        reports: Reports,
        run_dir: Path,
        signals: Signals,
        checkpoint: Checkpoint | None,
    ) -> Orchestrator:
        """Return the run, ready to begin or to continue."""
        from .orchestrator import PopulationOrchestrator  # matplotlib: 0.3 s and 25 MB that Dreamer saves

        return PopulationOrchestrator(config, run_parts, reports, run_dir, signals, checkpoint)
