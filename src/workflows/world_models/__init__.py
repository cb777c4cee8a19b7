"""Workflows that learn a model of the world."""

from .config import ControllerConfig as ControllerConfig
from .config import WorldModelConfig as WorldModelConfig
from .dreamer import DreamerConfig as DreamerConfig
from .dreamer import DreamerWorkflow as DreamerWorkflow
