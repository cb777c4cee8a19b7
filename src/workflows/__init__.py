"""Algorithms: how to act and how to learn."""

from .base import Collected as Collected
from .base import Learner as Learner
from .base import Player as Player
from .base import Updated as Updated
from .base import Workflow as Workflow
