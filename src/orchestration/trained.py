"""The agent and the replay that a run has left, built again from its folder."""

from pathlib import Path

import numpy as np

from ..buffers import EpisodeReplayBuffer, ReplaySpec
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.pretrained import holds_networks_alone, read_card, resolve_pretrained
from ..checkpoints.run_folder import checkpoint_of, load_run
from ..checkpoints.weights import load_weights, networks_of
from ..config.schema import Compile, Device, TrainConfig
from ..envs import Suite
from ..planning.preflight import environment_spec
from ..utils.errors import UserError
from ..workflows import Agent
from .recipes import recipe_of


def replay_of(
    checkpoint: Checkpoint, config: TrainConfig, run_dir: Path
) -> tuple[EpisodeReplayBuffer, ReplaySpec]:
    """Return a checkpoint's replay and its spec; one in mapped files takes nameless ones in `run_dir`."""
    recipe = recipe_of(config)
    request = recipe.replay_spec(config, environment_spec(config, recipe))
    replay = EpisodeReplayBuffer(request, generator=np.random.default_rng(), directory=run_dir)
    checkpoint.restore_replay(replay)
    return replay, request


def load_agent(
    name: str, device: Device, env: tuple[Suite, str | None] | None = None, key: str = "run"
) -> tuple[TrainConfig, Agent, int | None]:
    """Return configuration, agent and step of the newest checkpoint of a run, or of `pretrained:<name>`.

    `env` is a suite, and an id of Gymnasium, to play instead of what the run was trained in; `key` is what
    the user typed before the name, "" from Python.
    """
    folder = Path(resolve_pretrained(name))
    run = load_run(str(folder), device=device, key=key)
    run.compile = Compile.none  # nothing is learned
    checkpoint = None if holds_networks_alone(str(folder)) else checkpoint_of(run, folder)
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
        repair = "Give the environment that it was trained with, or one with the same spaces."
        raise UserError(
            f"{name} does not fit env={env[1] or env[0].value}: {error.__cause__}. {repair}"
        ) from error
    return run, workflow, checkpoint.step
