"""Settings of the progress display and the loggers."""

import importlib.util
from enum import Enum

from ..errors import UserError


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


def require_wandb(mode: WandbMode) -> None:
    """Raise `UserError` if the package is required but not installed. It is not imported."""
    if mode is not WandbMode.off and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"logger.wandb={mode.value} needs the package wandb, which is not installed. "
            "Run `pip install -c constraints.txt -e '.[wandb]'`, or set logger.wandb=off."
        )
