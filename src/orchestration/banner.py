"""What a run shows before it starts, in words and units."""

from collections.abc import Iterator
from dataclasses import asdict
from importlib import resources
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from ..utils.records import EnvSpec
from .config import CONFIG_PACKAGE, TrainConfig, WorkflowName, actual_device


def start_banner(config: TrainConfig, spec: EnvSpec, *, parameters: int, replay_bytes: int) -> list[str]:
    """Return the banner of a run, one line per item.

    Args:
        config: The run, its folder named.
        spec: Its environments.
        parameters: Trained numbers of the model.
        replay_bytes: Bytes that the replay buffer owns.
    """
    buffer = config.buffer
    is_population = config.workflow is WorkflowName.population
    lines = {
        "run": f"{config.name}, seed {config.seed}",
        "environment": f"{spec.name}, {_count(spec.num_envs, 'environment')}, "
        f"{_count(spec.action_repeat, 'frame')} per agent step",
        **({"observation": "; ".join(spec.notices)} if spec.notices else {}),
        "device": f"{config.device.value}, precision {config.precision.value}, compile "
        f"{config.compile.value}",
        "model": f"{model_name(config)}, {parameters:,} parameters",
        "replay": f"{buffer.capacity:,} records, {size_text(replay_bytes)} in {buffer.storage.value}",
    }
    lines |= _population_lines(config) if is_population else _dreamer_lines(config, spec)
    lines["folder"] = str(config.run_dir)
    width = max(map(len, lines))
    return [f"{name:<{width}}  {text}" for name, text in lines.items()]


def _dreamer_lines(config: TrainConfig, spec: EnvSpec) -> dict[str, str]:
    """Return how long and how much Dreamer learns."""
    training = config.training
    frames = training.total_timesteps * spec.action_repeat
    batch = f"{training.batch_size} windows of {training.sequence_length} steps"
    lines = {
        "length": f"{training.total_timesteps:,} agent steps = {frames:,} frames",
        "updates": _updates(config, spec.action_repeat),
        "batch": f"{batch} = {training.batch_size * training.sequence_length:,} trained steps per update",
    }
    if training.warmup_steps:
        lines["warm-up"] = f"world model only for the first {training.warmup_steps:,} agent steps"
    return lines


def _population_lines(config: TrainConfig) -> dict[str, str]:
    """Return how long, how much and by what means a population learns."""
    training, population = config.training, config.population
    explores = f", {population.num_explorers * population.exploration_episodes:,} more with noise"
    lines = {
        "length": f"{_count(training.generations, 'generation')}, at most {training.total_timesteps:,} agent "
        "steps",
        "play": f"{_count(population.size * population.episodes, 'episode')} per generation"
        + (explores if population.num_explorers else ""),
        "learning": "none by gradient",
        "evolution": "none",
    }
    if population.gradient:
        transitions = training.gradient_accumulation_steps * training.batch_size
        lines["learning"] = (
            f"TD3, {_count(training.gradient_steps_per_generation, 'update')} of each member per generation "
            f"on {training.gradient_accumulation_steps} x {training.batch_size} = {transitions:,} transitions"
        )
    if population.evolves:
        learner = ", the gradient learner injected" if population.has_learner else ""
        lines["evolution"] = f"{_count(population.num_elites, 'elite')} of {population.size}{learner}"
    return lines


def device_choices(composed: DictConfig) -> dict[str, Any]:
    """Return the settings that `${by_device:...}` decided, by their dotted keys."""
    raw = OmegaConf.to_container(composed, resolve=False)
    return {key: OmegaConf.select(composed, key) for key in _by_device_keys(raw)}


def device_notice(composed: DictConfig) -> list[str]:
    """Return the line that says what the device decided and how to decide otherwise; none if nothing was."""
    choices = device_choices(composed)
    size = _size_of(OmegaConf.to_container(composed.model, resolve=True))
    if size is not None and any(key.startswith("model.") for key in choices):
        named = {f"model.{key}" for key in model_presets()[size]}
        choices = {"model": size} | {key: value for key, value in choices.items() if key not in named}
    if not choices:
        return []
    words = ", ".join(f"{key}={_typed_form(value)}" for key, value in choices.items())
    key, value = next(iter(choices.items()))
    if key == "model":
        value = "size25m" if value == "size12m" else "size12m"
    device = actual_device(composed.device).value
    return [f"device={device}: chose {words}; to change one, set it, as in {key}={_typed_form(value)}"]


def model_name(config: TrainConfig) -> str:
    """Return the preset of `configs/model` that has the model's sizes, or `own size` if none has.

    Of a population it is the number of its members.
    """
    if config.workflow is WorkflowName.population:
        return f"{_count(config.population.size, 'member')} of TD3"
    return _size_of(asdict(config.model)) or "own size"


def model_presets() -> dict[str, dict[str, int]]:
    """Return the sizes of every preset of `configs/model` but `by_device`, those with most settings first."""
    files = resources.files(CONFIG_PACKAGE).joinpath("model").iterdir()
    named = {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}
    sizes = {name: yaml.safe_load(file.read_text()) for name, file in named.items() if name != "by_device"}
    for size in sizes.values():
        del size["defaults"]
    return dict(sorted(sizes.items(), key=lambda item: -len(item[1])))


def size_text(nbytes: int) -> str:
    """Return bytes in GiB or MiB, to read.

    >>> size_text(3 * 2**29), size_text(5 * 2**19)
    ('1.50 GiB', '2.5 MiB')
    """
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def _updates(config: TrainConfig, action_repeat: int) -> str:
    """Return "1 update per 8 agent steps = 32 frames, 12,365 updates in total, from step 1,088"."""
    training = config.training
    per_step = training.updates_per_step
    total = f"{_count(training.planned_updates, 'update')} in total, from step {training.learning_starts:,}"
    if per_step > 1:
        return f"{per_step:g} updates per agent step = {_count(action_repeat, 'frame')}, {total}"
    every = _count(1 / per_step, "agent step")
    return f"1 update per {every} = {_count(action_repeat / per_step, 'frame')}, {total}"


def _by_device_keys(raw: Any, prefix: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from _by_device_keys(value, f"{prefix}{key}.")
        elif isinstance(value, str) and value.startswith("${by_device:"):
            yield prefix + key


def _size_of(model: Any) -> str | None:
    """Return the preset all of whose sizes the model has."""
    return next((name for name, size in model_presets().items() if size.items() <= model.items()), None)


def _typed_form(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count(number: float, noun: str) -> str:
    text = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{text} {noun}" if number == 1 else f"{text} {noun}s"
