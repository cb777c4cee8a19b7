"""Hashes of a run's complete state. Runs with equal hashes are bit-for-bit identical.

`python -m reverie.testing.fingerprint RUN [RUN ...]` prints the hashes of each run.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoints.checkpoint import latest_checkpoint
from ..checkpoints.run_folder import LINEAGE_FILE, load_run
from ..checkpoints.shards import RANKS, RANKS_KEY
from ..config.dreamer import DreamerTrainConfig
from ..config.schema import Device
from ..orchestration.dreamer.recipe import share_of
from ..orchestration.trained import replay_of
from ..utils.errors import UserError, exit_on_user_error
from ..utils.logging.json_lines import METRICS_FILE, read_lines

NOT_REPRODUCIBLE = ("speed/", "time/", "memory/", "debug/", "train/memory/")
"""Prefixes of tags with irreproducible values, such as timings and memory."""


def fingerprint(run_dir: Path) -> dict[str, str]:
    """Return sha256 hashes of the newest checkpoint's model, loop and replay, and of metrics and lineage.

    The replay is hashed record by record, regardless of the layout of its files. A run with several ranks has
    one set of hashes per rank.

    Raises:
        UserError: If the folder is not a run or has no complete checkpoint.
    """
    hashes = _of_folder(run_dir)
    for folder in sorted((run_dir / RANKS).glob("*")):
        hashes |= {f"{folder.name}/{name}": value for name, value in _of_folder(folder).items()}
    return hashes


def _of_folder(run_dir: Path) -> dict[str, str]:
    """Return the hashes of a run, or of one rank's part of a run."""
    # With an explicit device, the CPU can also load a replay that was stored on a GPU.
    config, checkpoint = load_run(str(run_dir), device=Device.cpu, trust=True), latest_checkpoint(run_dir)
    if isinstance(config, DreamerTrainConfig):
        config = share_of(config, checkpoint.state().get(RANKS_KEY, 1))
    replay, _ = replay_of(checkpoint, config, run_dir)
    hashes = {
        "step": str(checkpoint.step),
        "model": hash_of(checkpoint.model(torch.device("cpu"))),
        "loop": hash_of(checkpoint.state()),
        "replay": replay.content_hash(),
        "metrics": hash_of(reproducible(read_lines(run_dir / METRICS_FILE))),
    }
    lineage = run_dir / LINEAGE_FILE
    if lineage.exists():
        hashes["lineage"] = hash_of(list(read_lines(lineage)))
    return hashes


def hash_of(state: Any) -> str:
    """Hash the names, dtypes, shapes and bytes of nested tensors, arrays and plain values."""
    digest = hashlib.sha256()
    _add(digest, "", state)
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", path: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            _add(digest, f"{path}/{key}", value[key])
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            _add(digest, f"{path}/{index}", each)
    elif isinstance(value, Tensor):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{path} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        digest.update(f"{path} {value.dtype} {value.shape}".encode())
        digest.update(value.tobytes())
    else:
        digest.update(f"{path} {value!r}".encode())


def reproducible(lines: Iterable[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the log lines without irreproducible values. Lines that become empty are dropped."""
    kept = [{k: v for k, v in line.items() if not k.startswith(NOT_REPRODUCIBLE)} for line in lines]
    return [line for line in kept if len(line) > 1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line of JSON per run folder. Exit with 1 if runs differ, or 2 if arguments are invalid."""
    folders = sys.argv[1:] if arguments is None else arguments
    with exit_on_user_error():
        if not folders or any(folder.startswith("-") for folder in folders):
            raise UserError("Pass the folders of runs: python -m reverie.testing.fingerprint RUN RUN")
        found = {folder: fingerprint(Path(folder)) for folder in folders}
    for folder, hashes in found.items():
        sys.stdout.write(json.dumps({"run": folder} | hashes) + "\n")
    if any(hashes != found[folders[0]] for hashes in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
