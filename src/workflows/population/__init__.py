"""A population of learners: evolution and TD3 over one shared replay."""

from .config import PopulationConfig as PopulationConfig
from .config import TD3Config as TD3Config
