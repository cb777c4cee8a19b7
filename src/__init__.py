"""Reverie: a reference DreamerV3 in PyTorch whose memory provably does not grow."""

import os
from multiprocessing import parent_process
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api.agent import Agent as Agent
    from .api.agent import load as load
    from .api.env_report import EnvReport as EnvReport
    from .api.env_report import check_env as check_env
    from .api.training import Run as Run
    from .api.training import train as train
    from .buffers import EpisodeRecords as EpisodeRecords
    from .buffers import EpisodeReplayBuffer as ReplayBuffer
    from .buffers import LatentSpec as LatentSpec
    from .buffers import ReplayConfig as ReplayConfig
    from .buffers import ReplaySpec as ReplaySpec
    from .buffers import SequenceBatch as SequenceBatch
    from .buffers import StoredLatent as StoredLatent
    from .buffers import TransitionBatch as TransitionBatch
    from .models import RSSM as RSSM
    from .models import LatentState as LatentState
    from .models import ModelConfig as ModelConfig
    from .models import Noise as Noise
    from .models import RSSMOutput as RSSMOutput
    from .utils.errors import UserError as UserError
    from .utils.timestep import ActionSpec as ActionSpec
    from .utils.timestep import ArraySpec as ArraySpec
    from .utils.timestep import EnvSpec as EnvSpec
    from .utils.timestep import TimeStep as TimeStep
    from .workflows.world_models import WorldModelConfig as WorldModelConfig
    from .workflows.world_models.world_model import WorldModel as WorldModel

if __name__ != "reverie":  # a second import would be a second set of classes
    raise ImportError(f"Import this package as `reverie`, not as `{__name__}`.")

from .utils.parent import end_with_parent
from .utils.public_names import public_names

__version__ = "0.2.0"

# How long torch's idle threads (GNU OpenMP) spin for more work: some 0.05 ms instead of several. Longer, they
# keep emulators, and other runs, from the cores; acting with 8 of them takes a fifth longer.
# OpenMP reads it when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

end_with_parent()
if parent_process() is None:  # processes of environments import no torch, and may outlive the folder
    from .utils.errors import require_current_folder

    require_current_folder()

__all__ = [
    "RSSM",
    "ActionSpec",
    "Agent",
    "ArraySpec",
    "EnvReport",
    "EnvSpec",
    "EpisodeRecords",
    "LatentSpec",
    "LatentState",
    "ModelConfig",
    "Noise",
    "RSSMOutput",
    "ReplayBuffer",
    "ReplayConfig",
    "ReplaySpec",
    "Run",
    "SequenceBatch",
    "StoredLatent",
    "TimeStep",
    "TransitionBatch",
    "UserError",
    "WorldModel",
    "WorldModelConfig",
    "check_env",
    "load",
    "train",
]

_HOMES = {
    "RSSM": ".models.RSSM",
    "ActionSpec": ".utils.timestep.ActionSpec",
    "Agent": ".api.agent.Agent",
    "ArraySpec": ".utils.timestep.ArraySpec",
    "EnvReport": ".api.env_report.EnvReport",
    "EnvSpec": ".utils.timestep.EnvSpec",
    "EpisodeRecords": ".buffers.EpisodeRecords",
    "LatentSpec": ".buffers.LatentSpec",
    "LatentState": ".models.LatentState",
    "ModelConfig": ".models.ModelConfig",
    "Noise": ".models.Noise",
    "RSSMOutput": ".models.RSSMOutput",
    "ReplayBuffer": ".buffers.EpisodeReplayBuffer",
    "ReplayConfig": ".buffers.ReplayConfig",
    "ReplaySpec": ".buffers.ReplaySpec",
    "Run": ".api.training.Run",
    "SequenceBatch": ".buffers.SequenceBatch",
    "StoredLatent": ".buffers.StoredLatent",
    "TimeStep": ".utils.timestep.TimeStep",
    "TransitionBatch": ".buffers.TransitionBatch",
    "UserError": ".utils.errors.UserError",
    "WorldModel": ".workflows.world_models.world_model.WorldModel",
    "WorldModelConfig": ".workflows.world_models.WorldModelConfig",
    "check_env": ".api.env_report.check_env",
    "load": ".api.agent.load",
    "train": ".api.training.train",
}
"""Where each public name is; it is imported when it is first asked for, for torch takes seconds."""


__getattr__, __dir__ = public_names(__name__, _HOMES)
