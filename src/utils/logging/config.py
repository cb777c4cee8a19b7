"""Choices of what a run shows and writes."""

import importlib.util
from enum import Enum

from ..errors import UserError


class ProgressMode(Enum):
    """Where progress is shown; members are as the user types them: `logger.progress=plain`."""

    auto = "auto"
    """A bar when stderr is a terminal, else plain lines."""
    bar = "bar"
    plain = "plain"


class WandbMode(Enum):
    """Where metrics for Weights & Biases go; the names are what users type."""

    off = "off"
    offline = "offline"
    online = "online"


def require_wandb(mode: WandbMode) -> None:
    """Raise a `UserError` if the package is asked for and missing; it is not imported."""
    if mode is not WandbMode.off and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"logger.wandb={mode.value} needs the package wandb, which is not installed here. "
            "Run `pip install 'reverie[wandb]'`, or set logger.wandb=off."
        )
