"""Settings of progress display and loggers."""

import importlib.util
from enum import Enum

from ..errors import UserError


class ProgressMode(Enum):
    """Display of progress, with members in the user's spelling: `logger.progress=plain`."""

    auto = "auto"
    """A bar if stderr is a terminal, otherwise plain lines."""
    bar = "bar"
    plain = "plain"


class WandbMode(Enum):
    """Destination of Weights & Biases metrics, with members in the user's spelling."""

    off = "off"
    offline = "offline"
    online = "online"


def require_wandb(mode: WandbMode) -> None:
    """Raise a `UserError` if the package is required but not installed. It is not imported."""
    if mode is not WandbMode.off and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"logger.wandb={mode.value} needs the package wandb, which is not installed. "
            "Run `pip install 'reverie[wandb]'`, or set logger.wandb=off."
        )
