"""Whose a remote folder is: `mirror.json`, in the folder of a run and in its copy.

It keeps the copy where it is when the local folder gets another name, on this machine or on the next, and two
runs from writing into one folder.
"""

import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from ...config.schema import TrainConfig
from ...utils.durable_io import fsync_dir, parse_json, read_json, reading, write_json
from ...utils.errors import UserError
from ...utils.remote_urls import require_protocol
from ..run_folder import CONFIG_FILE, EXPERIMENTS, UNFINISHED
from .remote import Remote, answer_within

IDENTITY_FILE = "mirror.json"
START_SECONDS = 5.0
"""How long the start of a run waits for a remote to say whether its folder is free."""


class Foreign(Exception):
    """The remote folder holds another run; the message says which folder."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a run is to its mirror."""

    name: str
    """Of its folder in `checkpoint.mirror`."""

    run: str
    """A random word that no other run has."""


def identity_of(run_dir: Path) -> Identity:
    """Return what is written in a run's folder, or else a new identity, which is not written yet.

    Raises:
        UserError: If the file is none that Reverie wrote.
    """
    path = run_dir / IDENTITY_FILE
    if not os.path.lexists(path):
        return Identity(_name_of(run_dir), uuid.uuid4().hex)
    saved = read_json(path)
    with reading(path):
        identity = Identity(name=str(saved["name"]), run=str(saved["run"]))
        if not identity.name or not {"", ".", ".."}.isdisjoint(identity.name.split("/")):
            raise ValueError("it names no folder")
    return identity


def save_identity(identity: Identity, run_dir: Path) -> None:
    """Write it into a run's folder, whole or not at all, unless it is there.

    Raises:
        OSError: If it cannot be written.
    """
    path = run_dir / IDENTITY_FILE
    if path.exists():
        return
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.unlink(missing_ok=True)
    write_json(unfinished, asdict(identity))
    os.replace(unfinished, path)
    fsync_dir(run_dir)


def require_own(remote: Remote, identity: Identity) -> None:
    """Check that a remote folder is free, or holds this run.

    Raises:
        Foreign: If it holds another one.
        Exception: Whatever keeps the remote from answering.
    """
    try:
        owner = parse_json(remote.read(IDENTITY_FILE))["run"]
    except FileNotFoundError:
        if not remote.exists(CONFIG_FILE):
            return
        owner = None  # a copy that was made by hand
    except (ValueError, KeyError, TypeError, RecursionError):
        owner = None
    if owner != identity.run:
        raise Foreign(remote.shown)


def check_mirror(config: TrainConfig) -> None:
    """Check that a run can have its mirror, as far as that can be known within `START_SECONDS`.

    A remote that does not answer is no mistake: the run tells of it, and tries again. Without `run_dir` the
    name of the folder tells the time, and is free.

    Raises:
        UserError: If its protocol cannot be used, or the remote folder holds another run.
    """
    url = config.checkpoint.mirror
    if url is None:
        return
    require_protocol("checkpoint.mirror", url)
    if config.run_dir is None:
        return
    identity = identity_of(Path(config.run_dir))
    try:
        answer_within(START_SECONDS, lambda: require_own(Remote(url, identity.name), identity))
    except Foreign as error:
        raise UserError(
            f"checkpoint.mirror: {error} already holds another run. Go on with that one by resume={error}, "
            "or choose another checkpoint.mirror or run_dir."
        ) from error
    except Exception:
        return


def _name_of(run_dir: Path) -> str:
    """Return the path in `experiments/`, which for a job of a multirun has two parts, else the last part."""
    path = run_dir.resolve()
    experiments = EXPERIMENTS.resolve()
    if experiments in path.parents:
        return PurePosixPath(path.relative_to(experiments)).as_posix()
    return path.name
