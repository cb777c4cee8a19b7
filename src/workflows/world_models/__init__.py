"""Workflows that learn a model of the world."""

from .compiled import CompiledCUDAGraphDreamer as CompiledCUDAGraphDreamer
from .compiled import CompiledDreamer as CompiledDreamer
from .compiled import CUDAGraphDreamer as CUDAGraphDreamer
from .compiled import batch_of as batch_of
from .config import ControllerConfig as ControllerConfig
from .config import WorldModelConfig as WorldModelConfig
from .dreamer import DreamerConfig as DreamerConfig
from .dreamer import DreamerEvalPolicy as DreamerEvalPolicy
from .dreamer import DreamerWorkflow as DreamerWorkflow
