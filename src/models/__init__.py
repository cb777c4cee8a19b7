"""The networks and the mathematics of DreamerV3: no I/O, no loop."""

from .config import ModelConfig as ModelConfig
from .decoder import Decoder as Decoder
from .distributions import CategoricalPolicy as CategoricalPolicy
from .distributions import MultiCategoricalPolicy as MultiCategoricalPolicy
from .distributions import Noise as Noise
from .distributions import Policy as Policy
from .distributions import categorical_entropy as categorical_entropy
from .distributions import categorical_kl as categorical_kl
from .distributions import unimix_log_probs as unimix_log_probs
from .encoder import Encoder as Encoder
from .heads import Actor as Actor
from .heads import ContinueHead as ContinueHead
from .heads import TwoHotHead as TwoHotHead
from .layers import meta_stands_for as meta_stands_for
from .optim import LEARNERS as LEARNERS
from .optim import LaProp as LaProp
from .optim import OptimizerConfig as OptimizerConfig
from .optim import falling as falling
from .returns import ReturnNormalizer as ReturnNormalizer
from .returns import lambda_return as lambda_return
from .rssm import RSSM as RSSM
from .rssm import LatentState as LatentState
from .rssm import RSSMOutput as RSSMOutput
