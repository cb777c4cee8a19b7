"""Rebuild a run's agent and replay from its folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.pretrained import holds_networks_alone, read_card, resolve_pretrained
from ..checkpoints.run_folder import checkpoint_of, load_run
from ..checkpoints.weights import load_weights, networks_of
from ..config.schema import Compile, Device, TrainConfig, WhichCheckpoint
from ..envs import Suite
from ..planning.recipe import environment_spec
from ..utils.errors import UserError
from ..workflows import Agent
from .recipes import recipe_of

if TYPE_CHECKING:
    from ..buffers import EpisodeReplayBuffer, ReplaySpec


def replay_of(
    checkpoint: Checkpoint, config: TrainConfig, run_dir: Path
) -> "tuple[EpisodeReplayBuffer, ReplaySpec]":
    """Return a checkpoint's replay and its spec. Memory-mapped storage uses unnamed files in `run_dir`."""
    # An agent is loaded without its replay.
    from ..buffers import EpisodeReplayBuffer

    recipe = recipe_of(config)
    request = recipe.replay_spec(config, environment_spec(config, recipe))
    replay = EpisodeReplayBuffer(request, directory=run_dir)
    checkpoint.restore_replay(replay)
    return replay, request


def load_agent(
    name: str,
    device: Device,
    env: tuple[Suite, str | None] | None = None,
    key: str = "run",
    which: WhichCheckpoint = WhichCheckpoint.newest,
    trust: bool = False,
) -> tuple[TrainConfig, Agent, int | None]:
    """Return the configuration, agent and step from a checkpoint of a run or from `pretrained:<name>`.

    `env` is a suite and a Gymnasium id that replace the run's environment. `key` is the name of the user's
    setting for `name`, for messages, or "" for calls from Python. See `load_run` for `trust`.
    """
    folder = Path(resolve_pretrained(name))
    run = load_run(str(folder), device=device, key=key, trust=trust)
    # The agent is not trained, so compilation would not pay off.
    run.compile = Compile.none
    checkpoint, only_best = None, which is WhichCheckpoint.best
    if not holds_networks_alone(str(folder)):
        checkpoint = checkpoint_of(run, folder, only_best=only_best)
    elif only_best:
        raise UserError(f"checkpoint=best needs a run, but {name} contains only networks. Omit it.")
    if env is not None:
        run.env.suite, run.env.id = env[0], env[1] or run.env.id
    recipe = recipe_of(run)
    workflow = recipe.build_agent(run, environment_spec(run, recipe))
    try:
        if checkpoint is None:
            load_weights(str(folder), networks_of(workflow), f"{key}={name}" if key else name)
            return run, workflow, read_card(folder).get("step")
        checkpoint.restore_workflow(workflow)
    except UserError as error:
        if env is None or not isinstance(error.__cause__, ValueError):
            raise
        repair = "Use its training environment, or one with the same spaces."
        raise UserError(
            f"{name} does not fit env={env[1] or env[0].value}: {error.__cause__}. {repair}"
        ) from error
    return run, workflow, checkpoint.step
