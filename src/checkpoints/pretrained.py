"""`pretrained:<name>`, `hub:<owner>/<name>`: networks alone, wherever a folder of a run is asked for."""

import os
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from ..utils.durable_io import corrupt_file_error, read_json, replacing
from ..utils.errors import UserError, did_you_mean, first_line
from .checkpoint import CHECKPOINTS

PREFIX, HUB_PREFIX = "pretrained:", "hub:"
CONFIG_FILE = "config.yaml"
WEIGHTS_FILE = "weights.safetensors"
CARD_FILE = "card.json"
_NEEDED = (WEIGHTS_FILE, CONFIG_FILE)  # a card may be missing


def pretrained_names() -> list[str]:
    """Return the names that can follow `pretrained:`."""
    return sorted(path.name for path in _root().iterdir() if (path / WEIGHTS_FILE).is_file())


def resolve_pretrained(source: str) -> str:
    """Return the folder that `pretrained:<name>` or `hub:<owner>/<name>` stands for; any other path as it is.

    Raises:
        UserError: If the package has no such networks, or they cannot be fetched from the hub.
    """
    if source.startswith(HUB_PREFIX):
        return str(_fetch_networks(source))
    if not source.startswith(PREFIX):
        return source
    name, names = source.removeprefix(PREFIX), pretrained_names()
    if name not in names:
        listed = ", ".join(PREFIX + each for each in names)
        raise UserError(
            f"{source} is not part of the package, which has {listed}.{did_you_mean(name, names)}"
        )
    return str(_root() / name)


def holds_networks_alone(source: str) -> bool:
    """Return whether a name stands for networks without replay: of the package, the hub or an export."""
    folder = Path(source)
    has_weights = os.path.isfile(folder / WEIGHTS_FILE) and not os.path.isdir(folder / CHECKPOINTS)
    return has_weights or source.startswith((PREFIX, HUB_PREFIX))


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of networks of the package, or that were exported; {} for any other folder."""
    path = folder / CARD_FILE
    card = read_json(path) if path.is_file() else {}
    if not isinstance(card, dict) or not isinstance(card.get("step"), int | None):
        raise corrupt_file_error(path, "no card")
    return card


def _root() -> Path:
    return Path(str(resources.files("reverie.pretrained")))


def _fetch_networks(source: str) -> Path:
    """Return a folder with the networks of a repository, `hub:<owner>/<name>` with or without `@<revision>`.

    No other file is fetched. What was fetched before is used again, also without a network. Endpoint, token
    and cache are those of huggingface_hub (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_OFFLINE`).

    Raises:
        UserError: If huggingface_hub is missing, the name is none, there is no such repository, revision or
            file, or nothing can be fetched.
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError as error:
        repair = "Install it: pip install 'reverie[hub]'."
        raise UserError(f"hub:<owner>/<name> needs huggingface_hub. {repair}") from error
    name, _, revision = source.removeprefix(HUB_PREFIX).partition("@")
    refusals = {
        errors.HFValidationError: "is no repository: write hub:<owner>/<name>.",
        errors.RevisionNotFoundError: f"has no revision {revision}. Leave it out for the newest.",
        # A GatedRepoError is one too.
        errors.RepositoryNotFoundError: "is not on the hub, or not for you. "
        "Check the name, or log in: hf auth login.",
        errors.LocalEntryNotFoundError: "cannot be fetched: the hub does not answer, and no earlier copy "
        "is here. Try again with a network, or name a folder of networks.",
    }
    try:
        patterns = [*_NEEDED, CARD_FILE]
        snapshot = Path(hub.snapshot_download(name, revision=revision or None, allow_patterns=patterns))
    except (errors.HFValidationError, OSError) as error:
        known = (text for kind, text in refusals.items() if isinstance(error, kind))
        raise UserError(f"{source} {next(known, f'cannot be fetched: {first_line(error)}')}") from error
    if missing := [file for file in _NEEDED if not (snapshot / file).is_file()]:
        raise UserError(f"{source} has no {missing[0]}. reverie-export writes what can be loaded.")
    # The cache of the hub consists of links, which no reader follows: this folder has regular files.
    folder = hub.cached_assets_path("reverie", name, snapshot.name)
    for file in patterns:
        if (snapshot / file).is_file() and not (folder / file).exists():
            with replacing(folder / file) as unfinished:
                shutil.copyfile(snapshot / file, unfinished)
    return folder
