"""Load the weights of earlier runs or included networks, for `model.init` and `reverie-evaluate`."""

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
    """Return an agent's parameters and buffers by part and name. Raise `UserError` if it is a population."""
    state = agent.state_dict()
    if "world_model" not in state:
        raise UserError("Populations can only be evaluated (reverie-evaluate), not exported or loaded.")
    return {name: state[name] for name in ("world_model", "controller")}


@torch.no_grad()
def load_weights(source: str, parts: Mapping[str, Mapping[str, Tensor]], asked: str | None = None) -> None:
    """Copy parameters and buffers, named `<part>/<name>`, into the tensors of state dicts.

    `source` is a safetensors file, a run folder (the newest intact checkpoint is used), a folder with
    `weights.safetensors`, `pretrained:<name>` or `hub:<owner>/<name>`. Its other tensors are ignored. `asked`
    is the user's input, if it was not `model.init=<source>`.

    Raises:
        UserError: If the source is missing, or a tensor is incompatible or not finite. Nothing has been
            changed in this case.
    """
    path, typed = Path(resolve_pretrained(source)), asked or f"model.init={source}"
    # Unlike `os.path.exists`, pathlib raises an error if a name is too long.
    if not os.path.exists(path):
        raise UserError(f"{typed} does not exist. Pass a safetensors file or the folder of a run.")
    if path.is_dir():
        weights = path / WEIGHTS_FILE
        path = weights if weights.is_file() else latest_checkpoint(path).folder / f"{MODEL}.safetensors"
    own = {f"{name}/{key}": value for name, part in parts.items() for key, value in part.items()}
    found = {name: tensor for name, tensor in read_tensors(path).items() if name in own}
    try:
        check_structure(found, own)
    except ValueError as error:
        repair = "The config.yaml in their folder belongs to different networks."
        if not asked:
            settings = "the environment, the model.* settings, and world_model.objective, decoder and harmony"
            repair = f"Use {settings} with which it was trained."
        raise UserError(f"{typed} does not fit the networks: {error}. {repair}") from error
    try:
        check_finite(found)
    except ValueError as error:
        raise UserError(f"{typed} cannot be used: {error}. Choose other weights.") from None
    for name, tensor in own.items():
        tensor.copy_(found[name])
