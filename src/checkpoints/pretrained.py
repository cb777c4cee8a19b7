"""`pretrained:<name>`, `hub:<owner>/<name>`: networks alone, wherever a folder of a run is asked for."""

from importlib import resources
from pathlib import Path
from typing import Any

from ..utils.durable_io import corrupt_file_error, read_json
from ..utils.errors import UserError, did_you_mean
from .hub import HUB_PREFIX, fetch_networks

PREFIX = "pretrained:"
PREFIXES = (PREFIX, HUB_PREFIX)
CONFIG_FILE = "config.yaml"
WEIGHTS_FILE = "weights.safetensors"
CARD_FILE = "card.json"


def pretrained_names() -> list[str]:
    """Return the names that can follow `pretrained:`."""
    return sorted(path.name for path in _root().iterdir() if (path / WEIGHTS_FILE).is_file())


def resolve_pretrained(source: str) -> str:
    """Return the folder that `pretrained:<name>` or `hub:<owner>/<name>` stands for; any other path as it is.

    Raises:
        UserError: If the package has no such networks, or they cannot be fetched from the hub.
    """
    if source.startswith(HUB_PREFIX):
        return str(fetch_networks(source, (WEIGHTS_FILE, CONFIG_FILE), (CARD_FILE,)))
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
    """Return the card of networks of the package, or that were exported; {} for any other folder."""
    path = folder / CARD_FILE
    card = read_json(path) if path.is_file() else {}
    if not isinstance(card, dict) or not isinstance(card.get("step"), int | None):
        raise corrupt_file_error(path, "no card")
    return card


def _root() -> Path:
    return Path(str(resources.files("reverie.pretrained")))
