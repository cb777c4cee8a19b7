"""Convert composed configurations to checked dataclasses, and resolve the device, precision and compiler."""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import TypeVar

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..utils.errors import UserError
from .dreamer import DreamerTrainConfig
from .schema import Compile, Device, Precision, TrainConfig, WorkflowName, actual_device
from .workflow import AnyTrainConfig

CONFIG_PACKAGE = "reverie.configs"

GROUPS = {
    **{name: [name] for name in ("env", "model", "buffer", "training", "memory", "logger")},
    "workflow": ["workflow", "world_model", "controller", "optimizer", "population", "td3"],
}
"""The sections that each group of `configs/` sets. A choice on the command line replaces all of them."""

COMPILE_SECONDS = {Device.cpu: 60.0, Device.cuda: 100.0}
"""Seconds that compilation (20 to 60 s, or 70 s on CUDA) must save for `compile=auto` to choose it."""

SAVED_PER_ACTION, SAVED_PER_UPDATE = 0.001, 0.01
"""Seconds that compilation saves. Measured: 0.8 to 1.5 ms per step, 0 to 40 ms per update
(docs/performance.md)."""

_CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""torch's names for bfloat16 products on x86. Only the first was measured. Arm's names are not used."""


@cache
def register_schemas() -> None:
    """Register the schemas with Hydra.

    The files of a group start with `<group>_schema`, which sets all defaults. A choice on the command line
    therefore replaces all values of an experiment.
    """
    store, whole = ConfigStore.instance(), OmegaConf.structured(AnyTrainConfig)
    store.store(name="train_schema", node=AnyTrainConfig)
    for group, names in GROUPS.items():
        store.store(name=f"{group}_schema", node=OmegaConf.masked_copy(whole, names), package="_global_")


def group_choices(config_dir: str | None = None) -> dict[str, list[str]]:
    """Return every group's choices by file name. Hydra's own loader takes 40 ms per group."""
    choices: dict[str, list[str]] = {}
    for root in (resources.files(CONFIG_PACKAGE), *([Path(config_dir)] if config_dir else [])):
        for folder in (each for each in root.iterdir() if each.is_dir()):
            names = sorted(file.name for file in folder.iterdir())
            found = [name.removesuffix(".yaml") for name in names if name.endswith(".yaml")]
            choices[folder.name] = choices.get(folder.name, []) + found
    return {group: names for group, names in choices.items() if names}


Config = TypeVar("Config", bound=TrainConfig)


def typed(composed: DictConfig, kind: type[Config] = TrainConfig, *, must_run_here: bool = True) -> Config:
    """Return a composed or saved run as checked dataclasses, with `auto` settings resolved.

    `kind` is the class that a caller expects, for callers that require one workflow. Without `must_run_here`,
    as for plans, device=cuda means any GPU with bfloat16, which all GPUs since 2020 support.

    Raises:
        UserError: If a value is missing, out of range, of the wrong type, or in conflict with another value.
    """
    config = composed.copy()
    try:
        config.device = actual_device(config.device)
        result = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {error.msg or error}".splitlines()[0]) from error
    assert isinstance(result, kind)
    if result.precision is Precision.auto:
        # Populations support only float32.
        is_dreamer = result.workflow is WorkflowName.dreamer
        has_bfloat16 = is_dreamer and multiplies_bfloat16(result.device, must_run_here)
        result.precision = Precision.bfloat16 if has_bfloat16 else Precision.float32
    if result.compile is Compile.auto:
        result.compile = _compile_that_pays(result)
    if must_run_here:
        if result.device is Device.cuda and actual_device(Device.auto) is Device.cpu:
            raise UserError("device=cuda was requested, but torch finds no CUDA device. Set device=cpu.")
        if result.precision is Precision.bfloat16 and not multiplies_bfloat16(result.device):
            refused = f"precision=bfloat16 is not supported on this device={result.device.value}"
            raise UserError(f"{refused}, only float32. Set precision=float32.")
    return result


def _compile_that_pays(config: TrainConfig) -> Compile:
    """Choose the compile mode by workflow, device and estimated savings."""
    if not isinstance(config, DreamerTrainConfig):
        return Compile.none
    training = config.training
    saved = training.total_timesteps / config.env.num_envs * SAVED_PER_ACTION
    saved += training.planned_updates * SAVED_PER_UPDATE
    if saved >= COMPILE_SECONDS[config.device]:
        return Compile.inductor
    return Compile.graph if config.device is Device.cuda else Compile.none


def multiplies_bfloat16(device: Device, must_run_here: bool = True) -> bool:
    """Return whether the device has instructions for bfloat16 products."""
    # Importing torch is slow, so do it only after every setting has been checked.
    import torch

    if device is not Device.cuda:
        # Other CPUs convert every number, so bfloat16 is slower than float32 there. Older versions of torch
        # lack this function.
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()
        return any(capabilities.get(name) for name in _CPU_BFLOAT16)
    if not torch.cuda.is_available():
        return not must_run_here
    return torch.cuda.is_bf16_supported(including_emulation=False)
