"""The game and the dream side by side: the session, and the page that shows it."""

from .actions import action_names as action_names
from .actions import key_map as key_map
from .session import DreamSession as DreamSession
from .session import Frame as Frame
