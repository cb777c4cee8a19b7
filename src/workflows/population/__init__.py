"""A population of learners: evolution and TD3 over one shared replay."""

from .config import PopulationConfig as PopulationConfig
from .config import TD3Config as TD3Config
from .evolution import INITIAL as INITIAL
from .evolution import Evolved as Evolved
from .evolution import Origin as Origin
from .evolution import evolve as evolve
from .evolution import rank as rank
from .operators import diversity as diversity
