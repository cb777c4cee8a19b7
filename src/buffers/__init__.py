"""Replay: records in memory that is allocated once, sampled as windows or transitions."""

from .batch import NO_POSITIONS as NO_POSITIONS
from .batch import STEP_FIELDS as STEP_FIELDS
from .batch import EpisodeRecords as EpisodeRecords
from .batch import SampledPositions as SampledPositions
from .batch import SequenceBatch as SequenceBatch
from .batch import StoredLatent as StoredLatent
from .config import LATENT_FIELDS as LATENT_FIELDS
from .config import OBSERVATION_PREFIX as OBSERVATION_PREFIX
from .config import LatentDtype as LatentDtype
from .config import LatentSpec as LatentSpec
from .config import ReplayConfig as ReplayConfig
from .config import ReplaySpec as ReplaySpec
from .config import ReplayStorage as ReplayStorage
from .config import record_fields as record_fields
from .episode_replay import EpisodeReplayBuffer as EpisodeReplayBuffer
from .feed import BatchFeed as BatchFeed
from .persistence import REPLAY_FILES as REPLAY_FILES
from .persistence import SavedReplay as SavedReplay
from .plan import ReplayPlan as ReplayPlan
from .plan import largest_capacity as largest_capacity
from .plan import plan_replay as plan_replay
from .plan import plan_unchecked as plan_unchecked
from .shared_files import LATENT_FILE_BYTES as LATENT_FILE_BYTES
from .storage import check_storage as check_storage
from .transitions import TransitionBatch as TransitionBatch
from .transitions import TransitionTable as TransitionTable
