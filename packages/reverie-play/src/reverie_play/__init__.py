"""Play a game and the model's dream side by side: the session and its web page."""

from .actions import action_names as action_names
from .actions import key_map as key_map
from .session import DreamSession as DreamSession
from .session import Frame as Frame

__version__ = "0.1.0"
