"""From what Hydra composed to checked dataclasses, with device, precision and compiler decided."""

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
"""What each group of `configs/` is about: a choice of the command line sets all of it."""

COMPILE_SECONDS = {Device.cpu: 60.0, Device.cuda: 100.0}
"""Seconds that compiling must save for `compile=auto` to choose it; it takes 20 to 60 s, and 70 on CUDA."""

SAVED_PER_ACTION, SAVED_PER_UPDATE = 0.001, 0.01
"""Seconds that compiling saves: of a step 0.8 to 1.5 ms, of an update 0 to 40 ms (docs/performance.md)."""

_CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""Names that torch gives to x86's products of bfloat16: the first is measured. Arm has its own, not used."""


@cache
def register_schemas() -> None:
    """Give Hydra its schemas.

    The files of a group begin with `<group>_schema`, its settings with their defaults: a choice of the
    command line then leaves nothing of what an experiment said.
    """
    store, whole = ConfigStore.instance(), OmegaConf.structured(AnyTrainConfig)
    store.store(name="train_schema", node=AnyTrainConfig)
    for group, names in GROUPS.items():
        store.store(name=f"{group}_schema", node=OmegaConf.masked_copy(whole, names), package="_global_")


def group_choices(config_dir: str | None = None) -> dict[str, list[str]]:
    """Return the names of the files in every group; Hydra's own loader takes 40 ms for each group."""
    choices: dict[str, list[str]] = {}
    for root in (resources.files(CONFIG_PACKAGE), *([Path(config_dir)] if config_dir else [])):
        for folder in (each for each in root.iterdir() if each.is_dir()):
            names = sorted(file.name for file in folder.iterdir())
            found = [name.removesuffix(".yaml") for name in names if name.endswith(".yaml")]
            choices[folder.name] = choices.get(folder.name, []) + found
    return {group: names for group, names in choices.items() if names}


Config = TypeVar("Config", bound=TrainConfig)


def typed(composed: DictConfig, kind: type[Config] = TrainConfig, *, must_run_here: bool = True) -> Config:
    """Return the checked dataclasses of a composed or saved run, its device and precision decided.

    `kind` is its class, where the caller knows the workflow. Unless it `must_run_here`, device=cuda stands
    for some card that computes bfloat16, as all do since 2020: for plans.

    Raises:
        UserError: If a value is missing, of the wrong type, out of range, or at odds with another.
    """
    config = composed.copy()
    try:
        config.device = actual_device(config.device)
        result = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {error.msg or error}".splitlines()[0]) from error
    assert isinstance(result, kind)
    if result.precision is Precision.auto:
        is_dreamer = result.workflow is WorkflowName.dreamer  # a population learns in float32 alone
        has_bfloat16 = is_dreamer and multiplies_bfloat16(result.device, must_run_here)
        result.precision = Precision.bfloat16 if has_bfloat16 else Precision.float32
    if result.compile is Compile.auto:
        result.compile = _compile_that_pays(result)
    if must_run_here:
        if result.device is Device.cuda and actual_device(Device.auto) is Device.cpu:
            raise UserError("device=cuda was asked for, but torch sees no CUDA device here. Set device=cpu.")
        if result.precision is Precision.bfloat16 and not multiplies_bfloat16(result.device):
            refused = f"precision=bfloat16 is not supported on this device={result.device.value}"
            raise UserError(f"{refused}; allowed there: float32. Set precision=float32.")
    return result


def _compile_that_pays(config: TrainConfig) -> Compile:
    """Return the mode for a run of which nothing else is known."""
    if not isinstance(config, DreamerTrainConfig):
        return Compile.none
    training = config.training
    saved = training.total_timesteps / config.env.num_envs * SAVED_PER_ACTION
    saved += training.planned_updates * SAVED_PER_UPDATE
    if saved >= COMPILE_SECONDS[config.device]:
        return Compile.inductor
    return Compile.graph if config.device is Device.cuda else Compile.none


def multiplies_bfloat16(device: Device, must_run_here: bool = True) -> bool:
    """Return whether the device has instructions for products of bfloat16."""
    import torch  # not before every setting is in its range

    if device is not Device.cuda:  # others convert each number: slower than float32
        capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # not in older torch
        return any(capabilities.get(name) for name in _CPU_BFLOAT16)
    if not torch.cuda.is_available():
        return not must_run_here
    return torch.cuda.is_bf16_supported(including_emulation=False)
