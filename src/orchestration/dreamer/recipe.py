"""The recipe of a Dreamer run: checks, plan, components and orchestrator."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from ...buffers import plan_unchecked
from ...checkpoints.checkpoint import list_checkpoints
from ...checkpoints.pretrained import CONFIG_FILE
from ...checkpoints.shards import folder_of_run
from ...checkpoints.weights import load_weights, networks_of
from ...config.dreamer import DreamerTrainConfig
from ...config.presets import preset_of
from ...config.schema import Compile, Device
from ...envs import Suite, make_environment, spec_of
from ...planning import GPU, HOST, Row, Written, constants
from ...planning.recipe import DryRun
from ...planning.resources import Basis
from ...planning.suggestions import halves
from ...utils.components import make_part
from ...utils.errors import UserError
from ...utils.ranks import ALONE, Ranks
from ...utils.timestep import EnvSpec
from ...utils.units import count_text
from ...workflows.world_models import (
    CompiledCUDAGraphDreamer,
    CompiledDreamer,
    CUDAGraphDreamer,
    DreamerWorkflow,
)
from .dry_run import autocast_dtype, dry_run, replay_spec, updates_on_zeros, workflow_config

if TYPE_CHECKING:
    from ..orchestrator import AnyParts, OpenedRun
    from ..world_model_orchestrator import WorldModelOrchestrator


def check_share(config: DreamerTrainConfig, size: int) -> None:
    """Raise a `UserError` if the run cannot be divided among `size` ranks."""
    if size == 1:
        return
    values = {"env.num_envs": config.env.num_envs, "training.batch_size": config.training.batch_size}
    for key, value in values.items():
        if value % size:
            below, above = value // size * size, (value // size + 1) * size
            repair = f"Set {key}={f'{below} or {above}' if below else above}"
            # A resumed run cannot change these two settings.
            if config.resume is not None:
                common = math.gcd(*values.values())
                fitting = [str(number) for number in range(1, common + 1) if common % number == 0]
                repair = f"Resume the run with {' or '.join(fitting)} of them"
            problem = f"{key}={value} cannot be divided evenly among {count_text(size, 'rank')}"
            raise UserError(f"{problem}. {repair}.")
    do_without = "Omit it, or start without torchrun"
    refused = {
        "env=vector": (config.env.suite is Suite.vector, "Set env=gymnasium, or start without torchrun"),
        "buffer.prefill": (config.buffer.prefill is not None, do_without),
        "training.offline": (config.training.offline, "Set training.offline=false"),
        "checkpoint.mirror": (config.checkpoint.mirror is not None, "Set checkpoint.mirror=null"),
        "collect.collectors": (config.collect.collectors > 0, do_without),
    }
    for key, repair in ((key, repair) for key, (is_set, repair) in refused.items() if is_set):
        raise UserError(f"{key} needs one process, but {count_text(size, 'rank')} share this run. {repair}.")


def share_of(config: DreamerTrainConfig, size: int) -> DreamerTrainConfig:
    """Return one rank's share of the run, out of `size` ranks, as a standalone configuration."""
    if size == 1:
        return config
    buffer, training = config.buffer, config.training
    return replace(
        config,
        env=replace(config.env, num_envs=config.env.num_envs // size),
        buffer=replace(
            buffer,
            capacity=buffer.capacity // size,
            memory_budget_gib=buffer.memory_budget_gib / size,
        ),
        training=replace(training, batch_size=training.batch_size // size),
    )


def build_workflow(config: DreamerTrainConfig, env: EnvSpec, ranks: Ranks = ALONE) -> DreamerWorkflow:
    """Return Dreamer for an environment, with initial parameters."""
    device = torch.device(config.device.value)
    # CUDA graphs cannot capture collectives.
    is_graph = device.type == "cuda" and ranks.size == 1
    kinds = {Compile.inductor: CompiledCUDAGraphDreamer if is_graph else CompiledDreamer}
    kinds |= {Compile.graph: CUDAGraphDreamer} if is_graph else {}
    kind = kinds.get(config.compile, DreamerWorkflow)
    dtype = autocast_dtype(config)
    # With precision=auto, different processors may choose different formats.
    if not ranks.are_equal([torch.tensor(dtype.itemsize)]):
        refused = "the machines of this run use different precisions, float32 and bfloat16"
        raise UserError(f"{refused}. Set precision=float32.")
    return kind(env, workflow_config(config), device, dtype, config.seed, ranks)


class DreamerRecipe:
    """Recipe of a run with a single agent and its world model."""

    has_model_presets = True
    samples_actions = True
    replay_spec = staticmethod(replay_spec)
    updates_on_zeros = staticmethod(updates_on_zeros)
    gpu_repair = "Run `reverie-plan plan.fit_gib=<GiB of the GPU>`, or lower training.batch_size"

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks

    def build(self, config: DreamerTrainConfig, run_dir: Path) -> "AnyParts":
        """Seed the global generators and return the components of a run with initial parameters."""
        # Loading an agent needs neither these components nor the loop.
        from ..orchestrator import Parts, begin_run, build_replay
        from .loop_state import require_windows

        snapshots = begin_run(config, run_dir)
        own, first = share_of(config, self.ranks.size), self.ranks.slice_of(config.env.num_envs).start
        environment = None
        if not config.collect.collectors:
            environment = make_environment(own.env, config.seed, config.training.video_interval > 0, first)
        spec = environment.spec if environment else spec_of(config.env)
        replay = build_replay(own, replay_spec(own, spec), run_dir, self.ranks)
        if config.training.offline and not list_checkpoints(run_dir):
            require_windows(replay)
        workflow = self.build_agent(config, spec)
        # A checkpoint's networks would replace these.
        if config.model.init and not list_checkpoints(folder_of_run(run_dir, self.ranks)):
            load_weights(config.model.init, networks_of(workflow))
        if environment is None:
            from .collectors import Collectors

            environment = Collectors(config, spec, workflow)
        return Parts(environment, replay, workflow, snapshots)

    def build_agent(self, config: DreamerTrainConfig, env: EnvSpec) -> DreamerWorkflow:
        """Return Dreamer for an environment, with initial parameters."""
        return build_workflow(config, env, self.ranks)

    def dry_run(self, config: DreamerTrainConfig, env: EnvSpec) -> DryRun:
        """Return the memory that the networks and their updates use, without allocating it."""
        return dry_run(config, env, self.ranks.size)

    def check(self, config: DreamerTrainConfig, env: EnvSpec) -> None:
        """Raise a `UserError` for an empty offline replay, overlong windows, or unequal shares of ranks."""
        # A folder of networks has a configuration but no checkpoints.
        is_new = config.run_dir is None or not (Path(config.run_dir) / CONFIG_FILE).exists()
        if config.training.offline and config.buffer.prefill is None and is_new:
            repair = "Set buffer.prefill=<folder of episodes>, or resume a run."
            raise UserError(f"training.offline=true trains only on the replay, which is empty. {repair}")
        length, longest = config.training.sequence_length, env.longest_episode
        if not config.buffer.cross_episodes and longest is not None and longest + 1 < length:
            raise UserError(
                f"buffer.cross_episodes=false draws windows of training.sequence_length={length} from single "
                f"episodes, but the longest here has {count_text(longest + 1, 'record')}. Set "
                f"training.sequence_length={longest + 1} or less, or omit buffer.cross_episodes."
            )
        check_share(config, self.ranks.size)

    def part(self, config: DreamerTrainConfig) -> DreamerTrainConfig:
        """Return one rank's share of the environments, replay and windows."""
        return share_of(config, self.ranks.size)

    def least_capacity(self, config: DreamerTrainConfig, env: EnvSpec) -> int:
        """Return the number of records in one window per environment."""
        return config.env.num_envs * (config.training.sequence_length + 1)

    def host_rows(self, config: DreamerTrainConfig, env: EnvSpec) -> list[Row]:
        """Return the plan's rows for a sampler, collectors and a local Ray cluster."""
        count, num_rows = config.collect.collectors, plan_unchecked(replay_spec(config, env)).num_rows
        sampler = make_part("buffer.sampler", config.buffer.sampler, num_rows)
        state = sampler.state_dict().values() if sampler is not None else ()
        own = [Row("sampler of the replay", sum(getattr(value, "nbytes", 0) for value in state))]
        if not count:
            return own
        from .collectors import object_store_mib, parcel_bytes

        rows = [*own, Row("rollout of a collector", parcel_bytes(config, env))]
        if config.collect.address is None:
            # A collector briefly creates a complete agent.
            networks = self.dry_run(config, env).state
            rows += [
                Row("Ray's object store", object_store_mib(config, env) * 2**20),
                Row("collectors", count * (constants.COLLECTOR_BYTES + networks), Basis.estimated),
                Row("Ray's services", constants.RAY_SERVICES_BYTES, Basis.estimated),
            ]
        return rows

    def num_environments(self, config: DreamerTrainConfig) -> int:
        """Return the number of environments, including evaluation environments."""
        training, playing = config.training, config.env.num_envs
        return playing + (min(playing, training.evaluation_episodes) if training.evaluation_interval else 0)

    def written(self, config: DreamerTrainConfig, env: EnvSpec) -> Written:
        """Return how much the whole run writes to disk."""
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
        """Yield changes that shorten the windows."""
        if GPU in over or (HOST in over and config.device is Device.cpu):
            yield (f"training.sequence_length={size}" for size in halves(config.training.sequence_length, 8))

    def model_name(self, config: DreamerTrainConfig) -> str:
        """Return the preset of `configs/model` that matches the model's sizes, or else `own size`."""
        return preset_of(asdict(config.model)) or "own size"

    def banner_lines(self, config: DreamerTrainConfig, env: EnvSpec) -> dict[str, str]:
        """Return the banner lines for length, updates, batches, ranks and data."""
        training = config.training
        frames = training.total_timesteps * env.action_repeat
        windows, steps = training.batch_size, training.sequence_length
        batch = f"{count_text(windows, 'window')} of {count_text(steps, 'step')}"
        lines = {
            "length": f"{count_text(training.total_timesteps, 'agent step')} ({count_text(frames, 'frame')})",
            "updates": _updates(config, env.action_repeat),
            "batch": f"{batch} ({count_text(windows * steps, 'trained step')} per update)",
        }
        if (size := self.ranks.size) > 1:
            own = share_of(config, size)
            envs, records = own.env.num_envs, own.buffer.capacity
            each = f"{count_text(envs, 'environment')} and {count_text(records, 'record')}"
            share = f"{count_text(own.training.batch_size, 'window')} per batch"
            lines["ranks"] = f"{size}, each with {each}, {share}"
            if config.device is Device.cuda and self.ranks.on_card > 1:
                lines["ranks"] += ", on a shared GPU with gloo"
        if count := config.collect.collectors:
            each = count_text(config.env.num_envs // count, "environment")
            lag = count_text(config.collect.max_staleness, "update")
            lines["collectors"] = f"{count}, each with {each} and weights at most {lag} old"
        if training.offline:
            lines["data"] = f"offline, only {config.buffer.prefill or 'the replay of the resumed run'}"
        if training.warmup_steps:
            first = count_text(training.warmup_steps, "agent step")
            lines["warm-up"] = f"world model only for the first {first}"
            if training.warmup_steps >= training.total_timesteps:
                lines["warm-up"] += ", so this run does not train the actor"
        return lines

    def orchestrator(self, opened: "OpenedRun") -> "WorldModelOrchestrator":
        """Return the run, ready to start or resume."""
        if not cast(DreamerTrainConfig, opened.config).collect.collectors:
            from ..world_model_orchestrator import WorldModelOrchestrator

            return WorldModelOrchestrator(opened)
        from .learner import LearnerOrchestrator

        return LearnerOrchestrator(opened)


def _updates(config: DreamerTrainConfig, action_repeat: int) -> str:
    """Return "1 update per 8 agent steps (32 frames), 12,365 updates in total, from step 1,088"."""
    training, per_step = config.training, config.training.updates_per_step
    updates = count_text(training.planned_updates, "update")
    total = f"{updates} in total, from step {training.first_update:,}"
    if not training.planned_updates:
        total += " (training.learning_starts), so this run does not learn"
    if per_step > 0.5:
        return (
            f"{count_text(per_step, 'update')} per agent step ({count_text(action_repeat, 'frame')}), {total}"
        )
    every = count_text(1 / per_step, "agent step")
    return f"1 update per {every} ({count_text(action_repeat / per_step, 'frame')}), {total}"
