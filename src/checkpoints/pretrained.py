"""Resolve `pretrained:<name>` and `hub:<owner>/<name>` to weights-only folders, usable like run folders."""

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
_NEEDED = (WEIGHTS_FILE, CONFIG_FILE)
"""Required files. The card is optional."""


def pretrained_names() -> list[str]:
    """Return the names that are valid after `pretrained:`."""
    return sorted(path.name for path in _root().iterdir() if (path / WEIGHTS_FILE).is_file())


def resolve_pretrained(source: str) -> str:
    """Return the folder of `pretrained:<name>` or `hub:<owner>/<name>`, and any other path unchanged.

    Raises:
        UserError: If the package does not include these networks, or downloading from the hub fails.
    """
    if source.startswith(HUB_PREFIX):
        return str(_fetch_networks(source))
    if not source.startswith(PREFIX):
        return source
    name, names = source.removeprefix(PREFIX), pretrained_names()
    if name not in names:
        listed = ", ".join(PREFIX + each for each in names)
        raise UserError(
            f"{source} is not included in the package. Choose {listed}.{did_you_mean(name, names)}"
        )
    return str(_root() / name)


def holds_networks_alone(source: str) -> bool:
    """Return whether a source is weights-only: from the package, the hub or an export."""
    folder = Path(source)
    has_weights = os.path.isfile(folder / WEIGHTS_FILE) and not os.path.isdir(folder / CHECKPOINTS)
    return has_weights or source.startswith((PREFIX, HUB_PREFIX))


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of bundled or exported networks, or {} if the folder has no card."""
    path = folder / CARD_FILE
    card = read_json(path) if path.is_file() else {}
    if not isinstance(card, dict) or not isinstance(card.get("step"), int | None):
        raise corrupt_file_error(path, "it is not a valid card")
    return card


def _root() -> Path:
    return Path(str(resources.files("reverie.pretrained")))


def _fetch_networks(source: str) -> Path:
    """Download the networks of a repository, `hub:<owner>/<name>[@<revision>]`, and return their folder.

    Other files are not downloaded. Cached downloads are reused and also work offline. Endpoint, token and
    cache are configured with huggingface_hub's variables (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`,
    `HF_HUB_OFFLINE`).

    Raises:
        UserError: If huggingface_hub is missing, the name is invalid or unknown, or the download fails.
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError as error:
        repair = "Install it: pip install -c constraints.txt -e '.[hub]'."
        raise UserError(f"hub:<owner>/<name> needs huggingface_hub. {repair}") from error
    name, _, revision = source.removeprefix(HUB_PREFIX).partition("@")
    refusals = {
        errors.HFValidationError: "is not a repository. Write hub:<owner>/<name>.",
        errors.RevisionNotFoundError: f"has no revision {revision}. Omit it for the newest.",
        # This also covers GatedRepoError, a subclass.
        errors.RepositoryNotFoundError: "does not exist on the hub, or you have no access. "
        "Check the name, or log in: hf auth login.",
        errors.LocalEntryNotFoundError: "cannot be downloaded: the hub does not respond, and there is no "
        "cached copy. Try again online, or pass a folder with weights.",
    }
    try:
        patterns = [*_NEEDED, CARD_FILE]
        snapshot = Path(hub.snapshot_download(name, revision=revision or None, allow_patterns=patterns))
    # The class of network errors depends on the version of the hub's library.
    except Exception as error:
        known = (text for kind, text in refusals.items() if isinstance(error, kind))
        raise UserError(f"{source} {next(known, f'cannot be downloaded: {first_line(error)}')}") from error
    if missing := [file for file in _NEEDED if not (snapshot / file).is_file()]:
        raise UserError(f"{source} has no {missing[0]}. reverie-export writes all required files.")
    # Reverie does not follow the links in the hub's cache, so the files are copied to this folder.
    folder = hub.cached_assets_path("reverie", name, snapshot.name)
    for file in patterns:
        if (snapshot / file).is_file() and not (folder / file).exists():
            with replacing(folder / file) as unfinished:
                shutil.copyfile(snapshot / file, unfinished)
    return folder
