"""Networks of an earlier run, or of the package: `model.init`, and what `reverie-evaluate` plays."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..utils.durable_io import read_tensors
from ..utils.errors import UserError
from ..utils.state_files import check_finite, check_structure
from .checkpoint import MODEL, latest_checkpoint
from .pretrained import WEIGHTS_FILE, resolve_pretrained


def networks_of(agent: Any) -> dict[str, dict[str, Tensor]]:
    """Return an agent's live parameters and buffers by part and name; a `UserError` for a population."""
    state = agent.state_dict()
    if "world_model" not in state:
        raise UserError("A population has no world model: name the folder of its run, not networks.")
    return {name: state[name] for name in ("world_model", "controller")}


@torch.no_grad()
def load_weights(source: str, parts: Mapping[str, Mapping[str, Tensor]], asked: str | None = None) -> None:
    """Copy parameters and buffers into live state dicts, by `<name of the part>/<name in it>`.

    `source` is a safetensors file, the folder of a run, whose newest whole checkpoint counts, a folder that
    holds `weights.safetensors`, `pretrained:<name>` or `hub:<owner>/<name>`; what else it holds is skipped.
    `asked` is what the user typed for it, if that was not `model.init=<source>`.

    Raises:
        UserError: Before anything changes: if there is no such file, or a tensor of it does not fit or has
            values that are not finite.
    """
    path, typed = Path(resolve_pretrained(source)), asked or f"model.init={source}"
    if not os.path.exists(path):  # pathlib would raise for a name that is too long
        raise UserError(f"{typed} does not exist. Name a safetensors file or the folder of a run.")
    if path.is_dir():
        weights = path / WEIGHTS_FILE
        path = weights if weights.is_file() else latest_checkpoint(path).folder / f"{MODEL}.safetensors"
    own = {f"{name}/{key}": value for name, part in parts.items() for key, value in part.items()}
    found = {name: tensor for name, tensor in read_tensors(path).items() if name in own}
    try:
        check_structure(found, own)
    except ValueError as error:
        repair = "The config.yaml of their folder is that of other networks."
        if not asked:
            settings = "the environment, the model.* settings, and world_model.objective, decoder and harmony"
            repair = f"Choose {settings} that it was trained with."
        raise UserError(f"{typed} does not fit the networks: {error}. {repair}") from error
    try:
        check_finite(found)
    except ValueError as error:
        raise UserError(f"{typed} cannot be used: {error}. Choose other networks.") from None
    for name, tensor in own.items():
        tensor.copy_(found[name])
