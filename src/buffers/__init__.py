"""Replay: records in memory that is allocated once, sampled as windows or transitions."""

from .batch import NO_POSITIONS as NO_POSITIONS
from .batch import STEP_FIELDS as STEP_FIELDS
from .batch import EpisodeRecords as EpisodeRecords
from .batch import LatentSpec as LatentSpec
from .batch import SampledPositions as SampledPositions
from .batch import SequenceBatch as SequenceBatch
from .batch import StoredLatent as StoredLatent
from .config import LatentDtype as LatentDtype
from .config import ReplayConfig as ReplayConfig
from .config import ReplayStorage as ReplayStorage
from .episode_replay import EpisodeReplayBuffer as EpisodeReplayBuffer
from .persistence import REPLAY_FILES as REPLAY_FILES
from .persistence import SavedReplay as SavedReplay
from .plan import LATENT_FIELDS as LATENT_FIELDS
from .plan import OBSERVATION_PREFIX as OBSERVATION_PREFIX
from .plan import ReplayPlan as ReplayPlan
from .plan import ReplaySpec as ReplaySpec
from .plan import largest_capacity as largest_capacity
from .plan import plan_replay as plan_replay
from .storage import check_storage as check_storage
from .transitions import TransitionBatch as TransitionBatch
from .transitions import Transitions as Transitions
from .transitions import TransitionTable as TransitionTable
