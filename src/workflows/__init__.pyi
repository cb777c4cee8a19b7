from .base import Agent as Agent
from .base import PolicyOutput as PolicyOutput
from .base import UpdateOutput as UpdateOutput
