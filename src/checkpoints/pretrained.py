"""`pretrained:<name>`: networks that come with the package, wherever a folder of a run is asked for."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from ..utils.errors import UserError, did_you_mean

PREFIX = "pretrained:"
WEIGHTS_FILE = "weights.safetensors"
CARD_FILE = "card.json"


def pretrained_names() -> list[str]:
    """Return the names that can follow `pretrained:`."""
    return sorted(path.name for path in _root().iterdir() if (path / WEIGHTS_FILE).is_file())


def resolve_pretrained(source: str) -> str:
    """Return the folder that `pretrained:<name>` stands for; any other path as it is.

    Raises:
        UserError: If the package has no such networks.
    """
    if not source.startswith(PREFIX):
        return source
    name, names = source.removeprefix(PREFIX), pretrained_names()
    if name not in names:
        listed = ", ".join(PREFIX + each for each in names)
        raise UserError(
            f"{source} is not part of the package, which has {listed}.{did_you_mean(name, names)}"
        )
    return str(_root() / name)


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of networks that come with the package; {} for any other folder."""
    path = folder / CARD_FILE
    return json.loads(path.read_text()) if path.is_file() else {}


def _root() -> Path:
    return Path(str(resources.files("reverie.pretrained")))
