"""The recipe of a population run: checks, plan, components and orchestrator."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch

from ...config.population import Engine, PopulationTrainConfig
from ...config.schema import Device
from ...envs import EnvConfig
from ...planning import GPU, HOST, Written
from ...planning.suggestions import halves
from ...utils.errors import UserError
from ...utils.ranks import ALONE, Ranks
from ...utils.timestep import EnvSpec
from ...utils.units import count_text
from ...workflows.population.erl import ERLWorkflow, require_vectors
from ..orchestrator import AnyParts, OpenedRun, Orchestrator, Parts, begin_run, build_replay
from .dry_run import dry_run, generation_steps, host_rows, replay_spec, require_room, updates_on_zeros
from .engines.ray_engine import RayEngine
from .engines.rollouts import EngineSettings, LocalEngine, longest_episode

PopulationEngine = LocalEngine | RayEngine
PopulationParts = Parts[PopulationEngine, ERLWorkflow]


def build_engine(config: PopulationTrainConfig) -> PopulationEngine:
    """Return the local or Ray engine that runs and trains a population."""
    # Unpickling a PopulationEnv would load all settings, using 30 MB in each worker.
    env = EnvConfig(**asdict(config.env))
    settings = EngineSettings(env, config.population, config.td3, config.seed)
    return RayEngine(config, settings) if config.engine is Engine.ray else LocalEngine(settings)


class PopulationRecipe:
    """Recipe of a run with an evolving population of learners and a shared replay."""

    has_model_presets = False
    samples_actions = False
    gpu_repair = "Lower population.size or training.batch_size"

    replay_spec = staticmethod(replay_spec)
    dry_run = staticmethod(dry_run)
    updates_on_zeros = staticmethod(updates_on_zeros)
    host_rows = staticmethod(host_rows)

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks

    def check(self, config: PopulationTrainConfig, env: EnvSpec) -> None:
        """Raise a `UserError` for several ranks, images, or a replay too small for training to start."""
        if (size := self.ranks.size) > 1:
            repair = "Start it without torchrun. To use several processes, set engine=ray."
            raise UserError(f"workflow=population has one process, not {count_text(size, 'rank')}. {repair}")
        require_vectors(env)
        capacity, needed = config.buffer.capacity, self.least_capacity(config, env)
        if capacity < needed:
            episode, starts = longest_episode(env) + 1, config.training.learning_starts
            learning = f" and training.learning_starts={starts}" if config.population.gradient else ""
            raise UserError(
                f"buffer.capacity={capacity} is too small for an episode of {count_text(episode, 'record')}"
                f"{learning}. Set buffer.capacity={needed} or more."
            )
        if config.engine is Engine.ray and config.ray.address is None:
            require_room(config, env, config.ray.object_store_mib * 2**20)

    def part(self, config: PopulationTrainConfig) -> PopulationTrainConfig:
        """Return the whole configuration, because there is only one rank."""
        return config

    def least_capacity(self, config: PopulationTrainConfig, env: EnvSpec) -> int:
        """Return the number of records in an episode plus those collected before training starts."""
        starts = config.training.learning_starts if config.population.gradient else 0
        return longest_episode(env) + 1 + starts

    def num_environments(self, config: PopulationTrainConfig) -> int:
        """Return the number of concurrent environments, one for each episode of a generation."""
        return config.population.num_rollouts

    def written(self, config: PopulationTrainConfig, env: EnvSpec) -> Written:
        """Return how much the whole run writes to disk."""
        steps, training = generation_steps(config, env), config.training
        # A generation has at least one step per episode.
        lines = min(training.generations, -(-training.total_timesteps // config.population.num_rollouts))
        every = config.memory.snapshot_interval if config.device is Device.cuda else 0
        snapshots = min(lines, lines * steps // every) if every else 0
        return Written(steps, has_best=True, log_lines=lines, videos=0, snapshots=snapshots)

    def smaller(self, config: PopulationTrainConfig, over: set[str]) -> Iterator[Iterable[str]]:
        """Yield changes that shrink the networks, then changes that reduce the number of episodes."""
        is_new = config.resume is None
        if is_new and (GPU in over or (HOST in over and config.device is Device.cpu)):
            yield (f"td3.hidden_units={size}" for size in halves(config.td3.hidden_units, 16))
        if HOST in over:
            yield (f"population.episodes={count}" for count in halves(config.population.episodes, 1))

    def model_name(self, config: PopulationTrainConfig) -> str:
        """Return the number of members."""
        return f"{count_text(config.population.size, 'member')} of TD3"

    def banner_lines(self, config: PopulationTrainConfig, env: EnvSpec) -> dict[str, str]:
        """Return the banner lines for length, episodes, training and evolution."""
        training, population = config.training, config.population
        explores = f", {population.num_explorers * population.exploration_episodes:,} more with noise"
        lines = {
            "length": f"{count_text(training.generations, 'generation')}, at most "
            f"{count_text(training.total_timesteps, 'agent step')}",
            "play": f"{count_text(population.size * population.episodes, 'episode')} per generation"
            + (explores if population.num_explorers else ""),
            "learning": "no gradient updates",
            "evolution": "none",
        }
        if population.gradient:
            transitions = training.gradient_accumulation_steps * training.batch_size
            updates = count_text(training.gradient_steps_per_generation, "update")
            lines["learning"] = (
                f"TD3, {updates} per member and generation with {count_text(transitions, 'transition')} "
                f"({training.gradient_accumulation_steps} x {training.batch_size})"
            )
        if population.evolves:
            learner = ", with injection of the gradient learner" if population.has_learner else ""
            lines["evolution"] = f"{count_text(population.num_elites, 'elite')} of {population.size}{learner}"
        return lines

    def build(self, config: PopulationTrainConfig, run_dir: Path) -> AnyParts:
        """Seed the global generators and return the components of a run with initial parameters."""
        snapshots = begin_run(config, run_dir)
        with ExitStack() as undo:
            engine = build_engine(config)
            # If the prefill is refused, the engine's processes must not be left running.
            undo.callback(engine.close)
            replay = build_replay(config, replay_spec(config, engine.spec), run_dir)
            parts = Parts(engine, replay, self.build_agent(config, engine.spec), snapshots)
            undo.pop_all()
        return parts

    def build_agent(self, config: PopulationTrainConfig, env: EnvSpec) -> ERLWorkflow:
        """Return the population with initial parameters."""
        device = torch.device(config.device.value)
        return ERLWorkflow(env, config.population, config.td3, device, config.seed)

    def orchestrator(self, opened: OpenedRun) -> Orchestrator:
        """Return the run, ready to start or resume."""
        # This import loads matplotlib (0.3 s, 25 MB). Dreamer does not need it.
        from .orchestrator import PopulationOrchestrator

        return PopulationOrchestrator(opened)
