"""Settings of the progress display and the loggers."""

from enum import Enum


class ProgressMode(Enum):
    """How progress is displayed. Members are spelled as users type them: `logger.progress=plain`."""

    auto = "auto"
    """A bar if stderr is a terminal, or plain lines otherwise."""
    bar = "bar"
    plain = "plain"


class WandbMode(Enum):
    """Where Weights & Biases metrics are sent. Members are spelled as users type them."""

    off = "off"
    offline = "offline"
    online = "online"
