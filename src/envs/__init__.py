"""Environments of any suite as records, with an explicit seed for each episode."""

from .backend import EnvironmentCrashed as EnvironmentCrashed
from .catch import CATCH_ID as CATCH_ID
from .catch import Catch as Catch
from .config import EnvConfig as EnvConfig
from .config import Suite as Suite
from .config import Vectorization as Vectorization
from .config import atari_games as atari_games
from .config import validate_env as validate_env
from .make import make_backend as make_backend
from .make import make_environment as make_environment
from .make import spec_of as spec_of
from .restarts import Restarts as Restarts
from .restore import state_form as state_form
from .vector import VectorEnvironment as VectorEnvironment
