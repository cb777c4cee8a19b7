"""A population of learners: evolution and TD3 over one shared replay."""

from .config import PopulationConfig as PopulationConfig
from .config import TD3Config as TD3Config
from .erl import ERLWorkflow as ERLWorkflow
from .erl import require_vectors as require_vectors
from .evolution import INITIAL as INITIAL
from .evolution import Origin as Origin
from .evolution import diversity as diversity
from .evolution import evolve as evolve
from .evolution import rank as rank
from .members import Members as Members
from .members import Sizes as Sizes
from .members import Stacked as Stacked
from .td3 import TD3 as TD3
from .td3 import Microbatch as Microbatch
from .td3 import TrainPhase as TrainPhase
from .td3 import flat_observation as flat_observation
