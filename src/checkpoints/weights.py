"""Begin a run with the networks of an earlier one: `model.init`."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from ..utils.durable_io import read_tensors
from ..utils.errors import UserError
from ..utils.state_files import check_structure
from .checkpoint import MODEL, latest_checkpoint


@torch.no_grad()
def load_weights(source: str, modules: Mapping[str, nn.Module]) -> None:
    """Copy parameters and buffers into modules, by `<name of the module>/<name in it>`; the rest is skipped.

    `source` is a safetensors file, or the folder of a run, whose newest whole checkpoint counts.

    Raises:
        UserError: Before anything changes: if there is no such file, or a tensor of it does not fit.
    """
    path = Path(source)
    if not path.exists():
        raise UserError(
            f"model.init={source} does not exist. Name a safetensors file or the folder of a run."
        )
    file = latest_checkpoint(path).folder / f"{MODEL}.safetensors" if path.is_dir() else path
    found = read_tensors(file)
    own = {
        f"{name}/{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    try:
        check_structure({name: tensor for name, tensor in found.items() if name in own}, own)
    except ValueError as error:
        raise UserError(
            f"model.init={source} does not fit the networks: {error}. "
            "Choose the model.* settings and the environment that it was trained with."
        ) from error
    for name, tensor in own.items():
        tensor.copy_(found[name])
