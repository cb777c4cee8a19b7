"""Workflows that learn a model of the world."""

from .compiled import CompiledDreamer as CompiledDreamer
from .config import ControllerConfig as ControllerConfig
from .config import WorldModelConfig as WorldModelConfig
from .cuda_graphs import CUDAGraphDreamer as CUDAGraphDreamer
from .dreamer import DreamerConfig as DreamerConfig
from .dreamer import DreamerWorkflow as DreamerWorkflow
