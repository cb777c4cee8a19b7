"""Describe presets: device-dependent choices, experiments and model sizes."""

import re
from importlib import resources
from string import Template
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from ..models import ModelConfig
from .overrides import typed_form
from .resolve import CONFIG_PACKAGE, group_choices
from .schema import actual_device, leaves

_SIZES = ("units", "hidden", "deter", "stoch", "classes", "depth")
"""Settings that identify a model preset. All other settings may differ from the preset."""

_TIME = "Training time: "


def device_notice(composed: DictConfig) -> list[str]:
    """Return a line with the choices made for the device and how to override them, or an empty list."""
    raw = leaves(OmegaConf.to_container(composed, resolve=False))
    by_device = [key for key, value in raw if isinstance(value, str) and value.startswith("${by_device:")]
    choices = {key: OmegaConf.select(composed, key) for key in by_device}
    has_model = any(key.startswith("model.") for key in choices)
    size = preset_of(OmegaConf.to_container(composed.model, resolve=True)) if has_model else None
    if size is not None:
        named = {f"model.{key}" for key in model_presets()[size]}
        choices = {"model": size} | {key: value for key, value in choices.items() if key not in named}
    if not choices:
        return []
    words = ", ".join(f"{key}={typed_form(value)}" for key, value in choices.items())
    how = " with key=value"
    if size is not None:
        how = ", e.g. model=" + ("size25m" if size == "size12m" else "size12m")
    return [f"device={actual_device(composed.device).value}: chose {words} (override any{how})"]


def experiment_lines() -> list[str]:
    """Return one line per experiment: its name, training time and first comment."""
    rows = []
    for file in sorted(
        resources.files(CONFIG_PACKAGE).joinpath("experiment").iterdir(), key=lambda file: file.name
    ):
        _, about, *comments = (
            line.removeprefix("# ") for line in file.read_text().splitlines() if line[:1] == "#"
        )
        [time] = (text.removeprefix(_TIME) for text in comments if text.startswith(_TIME))
        rows.append((file.name.removesuffix(".yaml"), time, re.split(r"[.,] |\.?$", about)[0]))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [f"{name:<{widths[0]}}  {time:<{widths[1]}}  {about}" for name, time, about in rows]


def overview() -> str:
    """Return the output of `reverie-train` without arguments: all experiments, and how to choose one."""
    lines = "\n".join(f"  {line}" for line in experiment_lines())
    return (
        f"Choose an experiment and its settings: reverie-train experiment=NAME [key=value ...]\n\n{lines}\n\n"
        "paper_* has the settings of the author's published curves. All others are fast presets.\n"
        "Your own environment: reverie-train env=gymnasium env.id=module:Name-v0\n"
        "All options: reverie-train --help"
    )


def help_text(config_dir: str | None = None) -> str:
    """Return the help text of `configs/train.yaml`. `config_dir` contains additional files for groups."""
    text = yaml.safe_load(resources.files(CONFIG_PACKAGE).joinpath("train.yaml").read_text())
    groups = [f"{group}: {', '.join(names)}\n" for group, names in sorted(group_choices(config_dir).items())]
    return Template(text["hydra"]["help"]["template"]).substitute(APP_CONFIG_GROUPS="".join(groups))


def model_presets() -> dict[str, dict[str, int]]:
    """Return the sizes of all device-independent presets of `configs/model`, most specific first."""
    defaults = {name: getattr(ModelConfig(), name) for name in _SIZES}
    sizes: dict[str, dict[str, int]] = {}
    for file in resources.files(CONFIG_PACKAGE).joinpath("model").iterdir():
        if file.name.endswith(".yaml") and "${by_device:" not in (text := file.read_text()):
            own = yaml.safe_load(text)
            del own["defaults"]
            sizes[file.name.removesuffix(".yaml")] = defaults | own
    return dict(sorted(sizes.items(), key=lambda item: -len(item[1])))


def preset_of(model: Any) -> str | None:
    """Return the first preset that has the model's sizes, or `None`."""
    return next((name for name, size in model_presets().items() if size.items() <= model.items()), None)
