"""Environments of any suite as records, with an explicit seed for each episode."""

from .backend import EnvironmentCrashed as EnvironmentCrashed
from .backend import EnvironmentFailed as EnvironmentFailed
from .backend import Restarts as Restarts
from .catch import CATCH_ID as CATCH_ID
from .catch import Catch as Catch
from .config import EnvConfig as EnvConfig
from .config import Suite as Suite
from .config import Vectorization as Vectorization
from .config import atari_games as atari_games
from .config import validate_env as validate_env
from .episode_log import state_form as state_form
from .vector import VectorEnvironment as VectorEnvironment
from .vector import make_backend as make_backend
from .vector import make_environment as make_environment
from .vector import make_single as make_single
from .vector import spec_of as spec_of
