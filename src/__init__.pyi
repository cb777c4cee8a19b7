from .api.agent import Agent as Agent
from .api.agent import load as load
from .api.env_report import EnvReport as EnvReport
from .api.env_report import check_env as check_env
from .api.training import Run as Run
from .api.training import train as train
from .buffers import EpisodeRecords as EpisodeRecords
from .buffers import LatentSpec as LatentSpec
from .buffers import ReplayBuffer as ReplayBuffer
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

__version__: str
