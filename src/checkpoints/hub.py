"""`hub:<owner>/<name>`: networks that `reverie-export` wrote, from a repository of the Hugging Face Hub."""

import os
import shutil
from pathlib import Path
from typing import Any

from ..utils.durable_io import UNFINISHED
from ..utils.errors import UserError

HUB_PREFIX = "hub:"
_SEPARATOR = "@"  # before a branch, a tag or a commit


def fetch_networks(source: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> Path:
    """Return a folder with files of a repository, `hub:<owner>/<name>` or `hub:<owner>/<name>@<revision>`.

    No other file is fetched. What was fetched before is used again, also without a network. Endpoint, token
    and cache are those of huggingface_hub (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_OFFLINE`).

    Raises:
        UserError: If huggingface_hub is missing, the name is none, there is no such repository, revision or
            file, or nothing can be fetched.
    """
    hub = _huggingface_hub()
    name, _, revision = source.removeprefix(HUB_PREFIX).partition(_SEPARATOR)
    errors: Any = hub.errors
    try:
        found = Path(
            hub.snapshot_download(name, revision=revision or None, allow_patterns=[*needed, *optional])
        )
    except errors.HFValidationError as error:
        raise UserError(f"{source} is no repository: write hub:<owner>/<name>.") from error
    except errors.RevisionNotFoundError as error:
        raise UserError(
            f"{source}: {name} has no revision {revision}. Leave it out for the newest."
        ) from error
    except errors.RepositoryNotFoundError as error:  # GatedRepoError is one
        raise UserError(
            f"{source} is not on the hub, or not for you. Check the name, or log in: hf auth login."
        ) from error
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError) as error:
        raise UserError(
            f"{source} cannot be fetched: the hub does not answer, and no earlier copy is here. Try again "
            "with a network, or name a folder of networks."
        ) from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise UserError(f"{source} cannot be fetched: {str(error).splitlines()[0]}") from error
    if missing := [file for file in needed if not (found / file).is_file()]:
        raise UserError(f"{source} has no {missing[0]}. reverie-export writes what can be loaded.")
    return _plain_copy(hub, found, name, (*needed, *optional))


def _plain_copy(hub: Any, snapshot: Path, name: str, files: tuple[str, ...]) -> Path:
    """Return a folder of regular files: the cache of the hub consists of links, which no reader follows."""
    folder: Path = hub.cached_assets_path("reverie", name, snapshot.name)
    for file in files:
        if (snapshot / file).is_file() and not (folder / file).exists():
            unfinished = folder / f"{file}.{os.getpid()}{UNFINISHED}"
            shutil.copyfile(snapshot / file, unfinished)
            os.replace(unfinished, folder / file)
    return folder


def _huggingface_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise UserError(
            "hub:<owner>/<name> needs huggingface_hub. Install it: pip install 'reverie[hub]'."
        ) from error
    return huggingface_hub
